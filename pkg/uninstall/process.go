package uninstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one process as /proc shows it. fd is a pidfd: signals go to this
// process even when its number has been given to another one meanwhile.
type process struct {
	pid, parent int
	exe         string // path of the program; "" for what may not be read
	args        []string
	fd          int
}

func (p *process) base() string { return filepath.Base(strings.TrimSuffix(p.exe, " (deleted)")) }

func (p *process) signal(sig unix.Signal) {
	_ = unix.PidfdSendSignal(p.fd, sig, nil, 0) // gone is as good as signalled
}

func (p *process) String() string {
	name := p.base()
	if len(p.args) > 0 {
		name = filepath.Base(p.args[0])
	}
	return fmt.Sprintf("%s (process %d)", name, p.pid)
}

// table is a snapshot of the machine's processes.
type table map[int]*process

func (t table) close() {
	for _, p := range t {
		_ = unix.Close(p.fd)
	}
}

// processes reads /proc. Threads of the kernel and what has ended are left out.
func processes() (table, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot read the processes: %w", err)
	}
	t := make(table)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// First the pidfd: what is read afterwards is about this process, or the
		// signal fails.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		p := &process{pid: pid, fd: fd}
		dir := filepath.Join("/proc", e.Name())
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		// pid (comm) state ppid …; comm may hold blanks and parentheses.
		i := bytes.LastIndexByte(stat, ')')
		if err != nil || i < 0 {
			_ = unix.Close(fd)
			continue
		}
		fields := strings.Fields(string(stat[i+1:]))
		if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
			_ = unix.Close(fd)
			continue
		}
		p.parent, _ = strconv.Atoi(fields[1])
		p.exe, _ = os.Readlink(filepath.Join(dir, "exe"))
		if cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline")); len(cmdline) > 0 {
			p.args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		}
		if p.exe == "" && len(p.args) == 0 {
			_ = unix.Close(fd)
			continue
		}
		t[pid] = p
	}
	return t, nil
}

// ancestors returns the given process and those that it descends from.
func (t table) ancestors(pid int) map[int]bool {
	set := make(map[int]bool)
	for p := t[pid]; p != nil && !set[p.pid]; p = t[p.parent] {
		set[p.pid] = true
	}
	return set
}

// wait returns those of the processes that are still there after timeout, or
// when ctx is done. It sleeps in poll, so it notices an end at once.
func wait(ctx context.Context, list []*process, timeout time.Duration) []*process {
	deadline := time.Now().Add(timeout)
	for len(list) > 0 {
		fds := make([]unix.PollFd, len(list))
		for i, p := range list {
			fds[i] = unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN}
		}
		// Short enough to notice that ctx is done.
		left := min(time.Until(deadline), 200*time.Millisecond)
		n, err := unix.Poll(fds, max(0, int(left.Milliseconds())))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return list
		}
		var alive []*process
		for i, p := range list {
			if n <= 0 || fds[i].Revents == 0 {
				alive = append(alive, p)
			}
		}
		list = alive
		if ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
	}
	return list
}

// below says whether path is in the folder dir.
func below(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// stopServers ends what runs from the data directory's bin folder or was told
// to use the data directory, except this process and those it descends from,
// and the shims, which StopPods knows better.
func (u *run) stopServers(ctx context.Context) error {
	t, err := processes()
	if err != nil {
		return err
	}
	defer t.close()
	spare := t.ancestors(os.Getpid())
	var list []*process
	for _, p := range t {
		if !spare[p.pid] && !isShim(p) && u.runsHere(p) {
			list = append(list, p)
		}
	}
	for _, p := range list {
		p.signal(unix.SIGTERM)
	}
	for _, p := range wait(ctx, list, processTimeout) {
		p.signal(unix.SIGKILL)
	}
	for _, p := range wait(ctx, list, processTimeout) {
		return fmt.Errorf("%s does not end: look at it with ps, and restart the machine if it hangs in the kernel", p)
	}
	if len(list) > 0 {
		u.step(fmt.Sprintf("ended %d processes", len(list)), nil)
	}
	return nil
}

func (o *Options) runsHere(p *process) bool {
	if below(p.exe, o.binDir()) {
		return true
	}
	if len(p.args) < 2 || filepath.Base(p.args[0]) != "kombi" || p.args[1] != "server" && p.args[1] != "agent" {
		return false
	}
	for i, arg := range p.args {
		switch arg {
		case "--data-dir=" + o.DataDir, "-d=" + o.DataDir, "-d" + o.DataDir:
			return true
		case "--data-dir", "-d":
			if i+1 < len(p.args) && filepath.Clean(p.args[i+1]) == o.DataDir {
				return true
			}
		}
	}
	return false
}

// binDir is where the launcher unpacks; /proc shows it without links.
func (o *Options) binDir() string {
	dir := filepath.Join(o.DataDir, "bin")
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}
