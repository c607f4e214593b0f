package failover

import "time"

// Timer is the attempt's own timer: no test could stop it just as it fires.
func (a *Attempt) Timer() *time.Timer { return a.timer }
