package tiered

import "sync"

// reloads counts reloads of the configuration.
type reloads struct {
	mu    sync.Mutex
	count ReloadStats
}

// CountReload counts a reload of the configuration in [Stats]. A nil err says that the Group has the new configuration,
// any other one why it does not. Code that watches a configuration, such as policyfile.Watcher, calls it after each
// reload.
func (g *Group) CountReload(err error) {
	if g.isZero() {
		return
	}
	g.reloads.mu.Lock()
	defer g.reloads.mu.Unlock()
	if g.reloads.count.Err = err; err != nil {
		g.reloads.count.Failed++
	} else {
		g.reloads.count.Applied++
	}
}

func (r *reloads) stats() ReloadStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
