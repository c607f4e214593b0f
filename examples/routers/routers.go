// Package routers puts the middleware behind chi, echo and gin: a module of its own, so that nobody who uses the limiter has
// these three in go.sum.
package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
)

// Middleware is what httplimit.New returns.
type Middleware = func(http.Handler) http.Handler

// Chi takes net/http middleware as it is.
func Chi(limit Middleware) http.Handler {
	r := chi.NewRouter()
	r.With(limit).Get("/tenants/{tenant}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("hello " + chi.URLParam(r, "tenant")))
	})
	return r
}

// Echo wraps it.
func Echo(limit Middleware) http.Handler {
	e := echo.New()
	e.GET("/tenants/:tenant", func(c echo.Context) error {
		return c.String(http.StatusOK, "hello "+c.Param("tenant"))
	}, echo.WrapMiddleware(limit))
	return e
}

// Gin has handlers of its own, so that it takes a few lines.
func Gin(limit Middleware) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.GET("/tenants/:tenant", ginned(limit), func(c *gin.Context) {
		c.String(http.StatusOK, "hello "+c.Param("tenant"))
	})
	return g
}

// ginned makes net/http middleware gin's. What comes after it in gin's chain is the handler that it wraps.
func ginned(limit Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		admitted := false
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			admitted = true
			c.Request = r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !admitted {
			c.Abort()
		}
	}
}
