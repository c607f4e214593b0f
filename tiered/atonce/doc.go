// Package atonce limits how many requests of a key run at the same time, in all processes together:
// five requests of a user, 20 exports of a tenant, 100 calls to a slow partner.
//
//	running, err := atonce.New(group, atonce.Policy{Name: "running", Places: 5})
//	...
//	place, err := running.Acquire(ctx, user)
//	if err != nil {
//		return err // errors.Is(err, atonce.ErrFull), or what the fail mode says
//	}
//	defer place.Release()
//
// A process that is killed loses its places after [Policy].Life. A key that is busy in one process
// costs no call per request. See docs/at-once.md for what is promised.
package atonce
