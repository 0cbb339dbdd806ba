package dns

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file has to be left alone before it is read again:
// editors and DHCP clients replace it in several steps.
const settle = 200 * time.Millisecond

// followResolvConf puts a token into changed whenever one of the files that name
// the node's resolvers may have changed. It watches directories, because these
// files are replaced rather than written, and often are symbolic links.
func (d *DNS) followResolvConf(ctx context.Context, changed chan<- struct{}) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		d.log.Warn("changes of the node's resolvers are only seen at the next start: cannot watch files", "error", err)
		return
	}
	defer func() { _ = watcher.Close() }()

	files := d.watchFiles(watcher)
	timer := time.NewTimer(settle)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			d.log.Warn("a change of the node's resolvers may have been missed", "error", err)
			timer.Reset(settle)
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			if files[filepath.Clean(event.Name)] && !event.Has(fsnotify.Chmod) {
				timer.Reset(settle)
			}
		case <-timer.C:
			files = d.watchFiles(watcher) // links may lead elsewhere now
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
}

// watchFiles has watcher watch the directories of all files that matter and
// returns the names to look for.
func (d *DNS) watchFiles(watcher *fsnotify.Watcher) map[string]bool {
	paths := []string{resolvConfFile, resolvedFile, networkManagerFile}
	if d.resolvConf != "" {
		paths = []string{d.resolvConf}
	}
	files := map[string]bool{}
	for _, path := range paths {
		for _, hop := range linkChain(path) {
			files[hop] = true
			// A directory that is not there is none of ours to wait for: it
			// belongs to a service that this node does not run.
			_ = watcher.Add(filepath.Dir(hop))
		}
	}
	return files
}

// linkChain returns path and whatever it leads to over symbolic links.
func linkChain(path string) []string {
	const maxHops = 10
	chain := []string{filepath.Clean(path)}
	for range maxHops {
		last := chain[len(chain)-1]
		target, err := os.Readlink(last)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(last), target)
		}
		chain = append(chain, filepath.Clean(target))
	}
	return chain
}
