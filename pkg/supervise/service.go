package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Service is a supervised Kombi on this machine and the files that belong to it.
type Service struct {
	// Name is kombi, kombi-agent or what INSTALL_KOMBI_NAME made of it.
	Name string
	// Root is prepended to every path; it is empty except in tests.
	Root string
}

// Folder holds the definitions of the services.
const Folder = "/etc/kombi/supervise"

// ArgsFile holds the command, one argument on each line.
func (s Service) ArgsFile() string { return filepath.Join(s.Root, Folder, s.Name+".args") }

// EnvFile holds NAME=value lines for the command's environment; mode 0600.
func (s Service) EnvFile() string { return filepath.Join(s.Root, Folder, s.Name+".env") }

// PIDFile holds the supervisor's process ID and is locked while it runs.
func (s Service) PIDFile() string { return filepath.Join(s.Root, "/run", s.Name+".pid") }

// LogFile holds the output of the command.
func (s Service) LogFile() string { return filepath.Join(s.Root, "/var/log", s.Name+".log") }

func (s Service) notifySocket() string { return filepath.Join(s.Root, "/run", s.Name+".notify") }

// Services lists the services that are defined on this machine.
func Services(root string) []Service {
	files, _ := filepath.Glob(filepath.Join(root, Folder, "*.args"))
	var list []Service
	for _, f := range files {
		list = append(list, Service{Name: strings.TrimSuffix(filepath.Base(f), ".args"), Root: root})
	}
	return list
}

// Command reads the argument vector of the service.
func (s Service) Command() ([]string, error) {
	return readLines(s.ArgsFile())
}

// Env reads the variables of the service, as NAME=value.
func (s Service) Env() ([]string, error) {
	lines, err := readLines(s.EnvFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var env []string
	for _, line := range lines {
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		env = append(env, name+"="+unquote(value))
	}
	return env, nil
}

// unquote undoes the quotes of a shell around a whole value, the way that
// install.sh writes them and systemd reads them.
func unquote(s string) string {
	n := len(s)
	if n < 2 || s[0] != s[n-1] || s[0] != '"' && s[0] != '\'' {
		return s
	}
	inner := s[1 : n-1]
	if s[0] == '\'' {
		return inner
	}
	var b strings.Builder
	for i := 0; i < len(inner); i++ {
		if inner[i] == '\\' && i+1 < len(inner) {
			i++
		}
		b.WriteByte(inner[i])
	}
	return b.String()
}

func readLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if scan.Text() != "" {
			lines = append(lines, scan.Text())
		}
	}
	return lines, scan.Err()
}

// lock takes the PID file for this process, or fails when another has it.
func (s Service) lock() (*os.File, error) {
	f, err := os.OpenFile(s.PIDFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("%s runs already: to start it again use 'kombi supervise restart --name %s'", s.Name, s.Name)
		}
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, err
	}
	if _, err := f.WriteString(strconv.Itoa(os.Getpid()) + "\n"); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// PID returns the process ID of the running supervisor, or 0.
func (s Service) PID() int {
	f, err := os.Open(s.PIDFile())
	if err != nil {
		return 0
	}
	defer f.Close()
	// A PID file that nobody has locked is left over. Asking takes no lock, so
	// it cannot get in the way of a start.
	held := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &held); err != nil || held.Type == unix.F_UNLCK {
		return 0
	}
	b := make([]byte, 32)
	n, _ := f.Read(b)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// Stop ends the supervisor and its command and waits until both are gone. It
// does nothing when they do not run. timeout bounds the wait.
func (s Service) Stop(timeout time.Duration) error {
	pid := s.PID()
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot stop %s (process %d): %w", s.Name, pid, err)
	}
	for deadline := time.Now().Add(timeout); s.PID() == pid; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s (process %d) did not end within %s: look at %s", s.Name, pid, timeout, s.LogFile())
		}
	}
	return nil
}
