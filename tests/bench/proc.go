package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one that the benchmark started.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // once ended
}

// launch starts a program that writes to the log.
func launch(name, log, dir, program string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, log: log, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// failure says why a process that should run does not.
func (p *process) failure() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %w\n%s", p.name, p.ending(), tail(p.log, 15))
	default:
		return nil
	}
}

// ending is how the process ended.
func (p *process) ending() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// endAll ends the processes in good order, all at the same time.
func endAll(ctx context.Context, all ...*process) error {
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	for _, p := range all {
		select {
		case <-p.ended:
		case <-limit.C:
			return fmt.Errorf("%s is still there %s after SIGTERM\n%s", p.name, stopLimit, tail(p.log, 5))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stopLimit is far more than anything should take to end.
const stopLimit = 2 * time.Minute

// usage is what the kernel counts for a process.
type usage struct {
	anon    int64         // bytes of private memory now
	cpu     time.Duration // used so far
	written int64         // bytes that it caused to be written to disk so far
}

func (u usage) add(o usage) usage {
	return usage{u.anon + o.anon, u.cpu + o.cpu, u.written + o.written}
}

// readUsage reads the counters of a process; one that ended has used nothing.
func readUsage(pid int) usage {
	return usage{
		anon:    1024 * field(fmt.Sprintf("/proc/%d/status", pid), "RssAnon:"),
		cpu:     cpuTime(pid),
		written: field(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:"),
	}
}

// field returns the number after a name at the start of a line.
func field(path, name string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// tick is the unit of the kernel's process times: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

func cpuTime(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold blanks; the state is the first field after it.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}

// machineBusy is the time that the processors of the machine have worked.
func machineBusy() time.Duration {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Scan()
	var busy int64
	for i, word := range strings.Fields(s.Text())[1:] {
		n, _ := strconv.ParseInt(word, 10, 64)
		if i != 3 && i != 4 && i < 8 { // idle, waiting for disks, and what guests used is in others already
			busy += n
		}
	}
	return time.Duration(busy) * tick
}

// shims are the processes that hold pods.
func shims() (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if program, err := os.Readlink(link); err == nil && filepath.Base(program) == "containerd-shim-runc-v2" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func loadAverage() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	load, _ := strconv.ParseFloat(strings.Fields(string(data))[0], 64)
	return load
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
