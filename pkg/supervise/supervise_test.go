package supervise

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test program, started again, is the command that is supervised. Each
// start adds a line to the file in SUPERVISE_TEST_STARTS.
func TestMain(m *testing.M) {
	role := os.Getenv("SUPERVISE_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	f, _ := os.OpenFile(os.Getenv("SUPERVISE_TEST_STARTS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fmt.Fprintf(f, "%d\n", os.Getpid())
	f.Close()
	fmt.Println("output of", role)
	switch role {
	case "fails":
		os.Exit(7)
	case "silent":
		notify("READY=1")
	case "works":
		notify("READY=1\nSTATUS=fine")
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		notify("READY=1")
		select {}
	}
	<-term
}

func notify(state string) {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = c.Write([]byte(state))
	_ = c.Close()
}

type bench struct {
	Options
	starts string
	cancel context.CancelFunc
	ended  chan error
}

// supervise runs a role until the test ends.
func supervise(t *testing.T, role string, change func(*Options)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{starts: filepath.Join(dir, "starts"), ended: make(chan error, 1)}
	b.Options = Options{
		Command:      []string{"/proc/self/exe"},
		Env:          append(os.Environ(), "SUPERVISE_TEST_ROLE="+role, "SUPERVISE_TEST_STARTS="+b.starts),
		LogFile:      filepath.Join(dir, "log"),
		NotifySocket: filepath.Join(dir, "notify"),
		MinBackoff:   10 * time.Millisecond,
		MaxBackoff:   40 * time.Millisecond,
		StopTimeout:  200 * time.Millisecond,
	}
	if change != nil {
		change(&b.Options)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	go func() { b.ended <- Run(ctx, b.Options) }()
	t.Cleanup(func() { cancel() })
	return b
}

func (b *bench) log() string {
	text, _ := os.ReadFile(b.LogFile)
	return string(text)
}

func (b *bench) count() int {
	text, _ := os.ReadFile(b.starts)
	return strings.Count(string(text), "\n")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func (b *bench) stop(t *testing.T) {
	t.Helper()
	b.cancel()
	select {
	case err := <-b.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return")
	}
}

func TestACommandThatEndsIsStartedAgain(t *testing.T) {
	b := supervise(t, "fails", nil)
	eventually(t, "four starts", func() bool { return b.count() >= 4 })
	b.stop(t)
	for _, want := range []string{"output of fails", "exit status 7", "starting it again in 10ms", "in 20ms", "in 40ms"} {
		if !strings.Contains(b.log(), want) {
			t.Errorf("%q is not in the log:\n%s", want, b.log())
		}
	}
}

func TestACommandThatWasToldToStopIsNotStartedAgain(t *testing.T) {
	b := supervise(t, "works", nil)
	eventually(t, "ready", func() bool { return strings.Contains(b.log(), "supervise: ready") })
	starts, err := os.ReadFile(b.starts)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(starts)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-b.ended:
		if err != nil || b.count() != 1 || !strings.Contains(b.log(), "supervise: stopped") {
			t.Errorf("%v after %d starts, log:\n%s", err, b.count(), b.log())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the supervisor goes on")
	}
}

func TestStopEndsTheCommandPolitely(t *testing.T) {
	b := supervise(t, "works", nil)
	eventually(t, "ready", func() bool { return strings.Contains(b.log(), "supervise: ready") })
	b.stop(t)
	if strings.Contains(b.log(), "killing") || b.count() != 1 {
		t.Errorf("%d starts, log:\n%s", b.count(), b.log())
	}
	if _, err := os.Stat(b.NotifySocket); err == nil {
		t.Error("the socket is left")
	}
}

func TestACommandThatDoesNotStopIsKilled(t *testing.T) {
	b := supervise(t, "deaf", nil)
	eventually(t, "ready", func() bool { return strings.Contains(b.log(), "supervise: ready") })
	b.stop(t)
	if !strings.Contains(b.log(), "killing") {
		t.Errorf("log:\n%s", b.log())
	}
}

func TestTheWatchdogRestartsACommandThatWentSilent(t *testing.T) {
	b := supervise(t, "silent", func(o *Options) { o.Watchdog = 100 * time.Millisecond })
	eventually(t, "a second start", func() bool { return b.count() >= 2 })
	b.stop(t)
	if !strings.Contains(b.log(), "did not report to the watchdog for 100ms") {
		t.Errorf("log:\n%s", b.log())
	}
}

func TestAProgramThatIsNotThereIsAnErrorAtOnce(t *testing.T) {
	var reported error
	b := supervise(t, "works", func(o *Options) {
		o.Command = []string{"/does/not/exist"}
		o.Started = func(err error) { reported = err }
	})
	select {
	case err := <-b.ended:
		if err == nil || reported == nil || !strings.Contains(err.Error(), "/does/not/exist") {
			t.Errorf("error %v, reported %v", err, reported)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not return")
	}
}

func TestTheLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	say(f, "before")
	if err := rotate(f, path, 1<<20); err != nil {
		t.Fatal(err)
	}
	if st, _ := f.Stat(); st.Size() == 0 {
		t.Error("a small log was rotated")
	}
	if err := rotate(f, path, 10); err != nil {
		t.Fatal(err)
	}
	say(f, "after")
	old, _ := os.ReadFile(path + ".1")
	now, _ := os.ReadFile(path)
	if !strings.Contains(string(old), "before") || !strings.Contains(string(now), "after") || strings.Contains(string(now), "before") {
		t.Errorf("old %q, new %q", old, now)
	}
}

func TestServiceFiles(t *testing.T) {
	s := Service{Name: "kombi-x", Root: t.TempDir()}
	if list := Services(s.Root); len(list) != 0 {
		t.Errorf("services %v", list)
	}
	if err := os.MkdirAll(filepath.Dir(s.ArgsFile()), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		s.ArgsFile(): "/usr/local/bin/kombi\nserver\n--node-label\na=b c\n",
		s.EnvFile():  "# comment\nKOMBI_TOKEN=\"a\\\"b\\$c\"\nKOMBI_DEBUG=true\nHTTP_PROXY='x y'\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list := Services(s.Root); len(list) != 1 || list[0] != s {
		t.Errorf("services %v", list)
	}
	if args, err := s.Command(); err != nil || strings.Join(args, "|") != "/usr/local/bin/kombi|server|--node-label|a=b c" {
		t.Errorf("command %q (%v)", args, err)
	}
	if env, err := s.Env(); err != nil || strings.Join(env, "|") != `KOMBI_TOKEN=a"b$c|KOMBI_DEBUG=true|HTTP_PROXY=x y` {
		t.Errorf("environment %q (%v)", env, err)
	}
}

func TestPIDIsOfARunningSupervisorOnly(t *testing.T) {
	s := Service{Name: "kombi", Root: t.TempDir()}
	if err := os.MkdirAll(filepath.Dir(s.PIDFile()), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := s.lock()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.PID(); got != os.Getpid() {
		t.Errorf("PID %d, want %d", got, os.Getpid())
	}
	if _, err := s.lock(); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second supervisor: %v", err)
	}
	_ = lock.Close()
	if got := s.PID(); got != 0 {
		t.Errorf("PID %d of one that has ended", got)
	}
	if err := s.Stop(time.Second); err != nil {
		t.Error(err)
	}
}
