// Package supervise keeps a Kombi server or agent running on a machine that
// has neither systemd nor OpenRC: it restarts the process with back-off, speaks
// systemd's notification protocol to it (ready, watchdog) and bounds its log.
// It is part of the launcher, so it imports little; it touches only the process
// that it started and the files named in its Options.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Options says what to run and how patiently.
type Options struct {
	// Command is the argument vector; Command[0] is a path.
	Command []string
	// Env is the complete environment of the command.
	Env []string
	// LogFile gets the output of the command and of the supervisor. When it
	// grows over LogLimit bytes its content moves to LogFile.1. Empty: stderr.
	LogFile  string
	LogLimit int64
	// NotifySocket is the path at which the command reports READY=1 and
	// WATCHDOG=1; empty means that it is not asked to.
	NotifySocket string
	// Watchdog is how long a command that has been ready may stay silent
	// before it is ended with SIGABRT and started again; 0 means for ever.
	Watchdog time.Duration
	// MinBackoff and MaxBackoff bound the pause before a restart. It doubles
	// with every restart and is back at the minimum after a run of Stable.
	MinBackoff, MaxBackoff, Stable time.Duration
	// StopTimeout is how long the command has after SIGTERM before SIGKILL.
	StopTimeout time.Duration
	// Started, unless nil, is called when the command has been started for the
	// first time, with the error when that failed.
	Started func(error)
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.MinBackoff, time.Second)
	set(&o.MaxBackoff, 30*time.Second)
	set(&o.Stable, time.Minute)
	set(&o.StopTimeout, 90*time.Second)
	if o.LogLimit == 0 {
		o.LogLimit = 50 << 20
	}
	return o
}

// Run starts the command, starts it again whenever it fails, and returns when
// ctx is done and the command has ended, or when the command ends with status 0:
// it was told to, by `kombi stop`. The command gets SIGTERM when ctx is
// done or when the supervisor is killed. It fails at once only when the command
// cannot be started the first time.
func Run(ctx context.Context, o Options) error {
	// The parent-death signal follows the thread that starts the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	o = o.WithDefaults()
	logs, err := openLog(o.LogFile)
	if err != nil {
		return err
	}
	defer logs.Close()
	notes, err := listen(o.NotifySocket)
	if err != nil {
		return err
	}
	defer notes.close()

	started := o.Started
	backoff := o.MinBackoff
	for {
		began := time.Now()
		cmd, err := start(o, logs)
		if started != nil {
			started(err)
			if err != nil {
				return err
			}
			started = nil
		}
		reason := ""
		if err != nil {
			reason = err.Error()
		} else {
			reason = watch(ctx, o, cmd, logs, notes)
		}
		if ctx.Err() != nil || reason == "" {
			say(logs, "stopped")
			return nil
		}
		if time.Since(began) >= o.Stable {
			backoff = o.MinBackoff
		}
		say(logs, "%s; starting it again in %s", reason, backoff)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, o.MaxBackoff)
	}
}

func start(o Options, logs *os.File) (*exec.Cmd, error) {
	cmd := exec.Command(o.Command[0], o.Command[1:]...)
	cmd.Env = o.Env
	if o.NotifySocket != "" {
		cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], "NOTIFY_SOCKET="+o.NotifySocket)
		if o.Watchdog > 0 {
			cmd.Env = append(cmd.Env, "WATCHDOG_USEC="+strconv.FormatInt(o.Watchdog.Microseconds(), 10))
		}
	}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", o.Command[0], err)
	}
	return cmd, nil
}

// watch returns why the command failed, or nothing when it ended with status 0.
func watch(ctx context.Context, o Options, cmd *exec.Cmd, logs *os.File, notes *socket) string {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	done := ctx.Done()
	var deadline <-chan time.Time // the next signal is SIGKILL
	var silent <-chan time.Time   // the watchdog
	alive := func() {
		if o.Watchdog > 0 {
			silent = time.After(o.Watchdog)
		}
	}
	housekeeping := time.NewTicker(time.Minute)
	defer housekeeping.Stop()
	why := ""
	for {
		select {
		case err := <-ended:
			switch {
			case why != "":
				return why
			case err == nil:
				return ""
			}
			return "the command ended: " + err.Error()
		case <-done:
			done, silent = nil, nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
			deadline = time.After(o.StopTimeout)
		case <-deadline:
			say(logs, "the command does not end: killing it")
			_ = cmd.Process.Kill()
		case note := <-notes.c:
			if done == nil {
				continue // stopping
			}
			switch note {
			case ready:
				say(logs, "ready")
				alive()
			case keepAlive:
				if silent != nil {
					alive()
				}
			}
		case <-silent:
			silent = nil
			why = fmt.Sprintf("the command did not report to the watchdog for %s", o.Watchdog)
			_ = cmd.Process.Signal(syscall.SIGABRT)
			deadline = time.After(10 * time.Second)
		case <-housekeeping.C:
			if err := rotate(logs, o.LogFile, o.LogLimit); err != nil {
				say(logs, "cannot rotate the log: %v", err)
			}
		}
	}
}

func openLog(path string) (*os.File, error) {
	if path == "" {
		return os.Stderr, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %w", err)
	}
	return f, nil
}

// rotate copies and truncates, because the command writes to the file itself:
// no pipe to break and no copy of each line.
func rotate(logs *os.File, path string, limit int64) error {
	st, err := logs.Stat()
	if err != nil || path == "" || st.Size() <= limit {
		return err
	}
	old, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, io.NewSectionReader(logs, 0, st.Size()))
	return errors.Join(err, old.Close(), logs.Truncate(0))
}

func say(logs io.Writer, format string, args ...any) {
	fmt.Fprintf(logs, "%s supervise: %s\n", time.Now().UTC().Format(time.RFC3339), fmt.Sprintf(format, args...))
}
