package deploy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Debouncing: files are read when nothing has changed for quiet, and at the
// latest after atMost, so that a file that changes all the time is read too.
const (
	quiet  = 250 * time.Millisecond
	atMost = 3 * time.Second
	// rescan is how often the folder is read when it cannot be watched. Reading
	// costs little, and nothing is written when nothing changed.
	rescan = 15 * time.Second
)

// folderWatch tells when files below the manifests folder change.
type folderWatch struct {
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil when there is nothing to watch
	notify  chan struct{}
	done    chan struct{}
	wg      sync.WaitGroup
	seen    func() // called for each change, before the debouncing

	watched []string // owned by the caller of follow
	once    sync.Once
	polled  sync.Once
}

// watchFolder makes the folder if it is absent and starts watching it. seen is
// called at each change, from another goroutine. A folder of "" is never changed.
func watchFolder(root string, log *slog.Logger, seen func()) (*folderWatch, error) {
	w := &folderWatch{log: log, notify: make(chan struct{}, 1), done: make(chan struct{}), seen: seen}
	if root == "" {
		return w, nil
	}
	// The manifests may contain secrets.
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("the manifests folder %s cannot be made: %s; make it, or start Kombi with another --data-dir", root, cause(err))
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.poll(err)
		return w, nil
	}
	w.watcher = watcher
	w.wg.Go(w.run)
	w.follow([]string{root})
	return w, nil
}

// changed receives once after each burst of changes.
func (w *folderWatch) changed() <-chan struct{} { return w.notify }

func (w *folderWatch) signal() {
	select {
	case w.notify <- struct{}{}:
	default:
	}
}

// follow watches exactly these folders.
func (w *folderWatch) follow(dirs []string) {
	if w.watcher == nil {
		return
	}
	// The kernel drops the watch of a folder that is deleted; adding it again,
	// in case another has its name now, costs nothing if it is still there.
	for _, dir := range dirs {
		if err := w.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.poll(fmt.Errorf("%s: %w", dir, err))
		}
		if !slices.Contains(w.watched, dir) {
			// What was written between reading the folder and watching it would
			// be missed otherwise.
			w.signal()
		}
	}
	for _, dir := range w.watched {
		if !slices.Contains(dirs, dir) {
			_ = w.watcher.Remove(dir) // it is gone, or is watched no more
		}
	}
	w.watched = slices.Clone(dirs)
}

// poll falls back to reading the folder from time to time.
func (w *folderWatch) poll(why error) {
	w.polled.Do(func() {
		w.log.Warn("the manifests folder cannot be watched and is read every "+rescan.String()+" instead; raise fs.inotify.max_user_watches and max_user_instances", "error", why)
		w.wg.Go(func() {
			ticker := time.NewTicker(rescan)
			defer ticker.Stop()
			for {
				select {
				case <-w.done:
					return
				case <-ticker.C:
					w.signal()
				}
			}
		})
	})
}

func (w *folderWatch) run() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var first time.Time // of the burst; zero between bursts
	stir := func() {
		w.seen()
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		timer.Reset(max(0, min(quiet, atMost-now.Sub(first))))
	}
	for {
		select {
		case <-w.done:
			timer.Stop()
			return
		case _, ok := <-w.watcher.Events:
			if !ok {
				return
			}
			stir()
		case err, ok := <-w.watcher.Errors:
			if !ok {
				return
			}
			w.log.Debug("changes of the manifests folder were missed; reading it again", "error", err)
			stir()
		case <-timer.C:
			first = time.Time{}
			w.signal()
		}
	}
}

func (w *folderWatch) close() {
	w.once.Do(func() { close(w.done) })
	w.wg.Wait()
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}
