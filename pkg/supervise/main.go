package supervise

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `Usage: kombi supervise start|stop|restart|status|run [--name NAME]

Keeps the service NAME (default kombi) running where there is no systemd and no
OpenRC. install.sh defines the service in ` + Folder + `.
`

const (
	stopTimeout = 100 * time.Second
	watchdog    = time.Minute
	// readyFD is where a detached supervisor reports the outcome of its start.
	readyFD  = 3
	envReady = "KOMBI_SUPERVISE_READY"
)

// Main is the command `kombi supervise`; args come after that word. It returns
// the exit status: 3 from status means that the service does not run.
func Main(args []string) int {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Print(usage)
		return 0
	}
	flags := flag.NewFlagSet("kombi supervise "+args[0], flag.ContinueOnError)
	name := flags.String("name", "kombi", "name of the service")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	s := Service{Name: *name}
	var err error
	switch args[0] {
	case "start":
		err = s.start()
	case "stop":
		err = s.Stop(stopTimeout)
	case "restart":
		if err = s.Stop(stopTimeout); err == nil {
			err = s.start()
		}
	case "run":
		err = s.run()
	case "status":
		pid := s.PID()
		if pid == 0 {
			fmt.Printf("%s does not run: start it with 'kombi supervise start --name %s'\n", s.Name, s.Name)
			return 3
		}
		fmt.Printf("%s runs, supervised by process %d, log in %s\n", s.Name, pid, s.LogFile())
	default:
		err = fmt.Errorf("%q is not one of start, stop, restart, status, run", args[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kombi: %v\n", err)
		return 1
	}
	return 0
}

// run supervises in the foreground until SIGTERM or SIGINT.
func (s Service) run() (err error) {
	report := func(error) {}
	if os.Getenv(envReady) != "" {
		_ = os.Unsetenv(envReady)
		pipe := os.NewFile(readyFD, "ready")
		report = func(err error) {
			if err != nil {
				fmt.Fprint(pipe, err)
			}
			_ = pipe.Close()
		}
		syscall.CloseOnExec(readyFD)
	}
	started := false
	defer func() {
		if !started {
			report(err)
		}
	}()

	command, err := s.Command()
	if errors.Is(err, os.ErrNotExist) || err == nil && len(command) == 0 {
		return fmt.Errorf("no service %s is defined: %s is missing or empty; run install.sh", s.Name, s.ArgsFile())
	}
	if err != nil {
		return err
	}
	env, err := s.Env()
	if err != nil {
		return err
	}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return Run(ctx, Options{
		Command:      command,
		Env:          append(os.Environ(), env...),
		LogFile:      s.LogFile(),
		NotifySocket: s.notifySocket(),
		Watchdog:     watchdog,
		Started: func(err error) {
			started = true
			report(err)
		},
	})
}

// start runs this program again, detached, and waits until the command runs.
func (s Service) start() error {
	if pid := s.PID(); pid != 0 {
		return nil // as with every service manager
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	logs, err := openLog(s.LogFile())
	if err != nil {
		return err
	}
	defer logs.Close()
	cmd := exec.Command("/proc/self/exe", "supervise", "run", "--name", s.Name)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envReady+"=1")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("cannot start the supervisor: %w", err)
	}
	var b strings.Builder
	buf := make([]byte, 1024)
	for {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if b.Len() > 0 {
		return errors.New(b.String())
	}
	return cmd.Process.Release()
}
