package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watcher tells which files of one folder are complete. It uses inotify
// directly, because only the kernel's close-after-write event tells a finished
// copy from one that still grows.
type watcher struct {
	file *os.File
}

func newWatcher(dir string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w (raise fs.inotify.max_user_instances)", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	const mask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM |
		unix.IN_DELETE | unix.IN_CREATE | unix.IN_ONLYDIR | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		file.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return &watcher{file: file}, nil
}

// errDirGone reports that the watched folder itself was removed or moved.
var errDirGone = errors.New("the folder was removed")

// run calls changed with the name of every file that may have changed, or with
// "" when events were lost and the whole folder has to be looked at.
func (w *watcher) run(ctx context.Context, changed func(name string)) error {
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	defer w.file.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read inotify events: %w", err)
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			name := buf[at+unix.SizeofInotifyEvent : at+unix.SizeofInotifyEvent+int(event.Len)]
			at += unix.SizeofInotifyEvent + int(event.Len)
			switch {
			case event.Mask&unix.IN_Q_OVERFLOW != 0:
				changed("")
			case event.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0:
				return errDirGone
			default:
				changed(string(bytes.TrimRight(name, "\x00")))
			}
		}
	}
}

// beingWritten tells whether some process holds f open for writing. The kernel
// grants a read lease only when nobody does; file systems without leases say
// no, and then the close event is what remains.
func beingWritten(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return false
	}
	return errors.Is(err, unix.EAGAIN)
}
