package network

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// place is where a helper runs.
type place struct {
	netns  string // path; empty is the node's own
	cgroup *os.File
	hasty  bool // clients wait for an answer only shortly, where silence is expected
}

func (p place) brief() place {
	p.hasty = true
	return p
}

func (p place) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append([]string{exe}, args...)
	if p.netns != "" {
		argv = append([]string{"nsenter", "--net=" + p.netns, "--"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	if p.hasty {
		cmd.Env = append(cmd.Env, hastyEnv+"=1")
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if p.cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(p.cgroup.Fd())
	}
	return cmd
}

// serve starts a server that lives as long as the test, or until the returned function is called.
func (p place) serve(t *testing.T, proto, addr, name string) (stop func()) {
	t.Helper()
	cmd := p.command(t, "serve", proto, addr, name)
	return startReady(t, cmd, name+" at "+addr)
}

// startReady starts a helper and waits for its word that it is ready. It is killed with the test.
func startReady(t *testing.T, cmd *exec.Cmd, name string) (stop func()) {
	t.Helper()
	out, err1 := cmd.StdoutPipe()
	_, err2 := cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s did not start: %q %v", name, line, err)
	}
	return stop
}

// client is a connection that stays open.
type client struct {
	t   *testing.T
	in  *json.Decoder
	out *bufio.Writer
	end func()
}

func (p place) dial(t *testing.T, proto, local, addr string) *client {
	t.Helper()
	cmd := p.command(t, "call", proto, local, addr)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, in: json.NewDecoder(out), out: bufio.NewWriter(in)}
	closed := false
	c.end = func() {
		if !closed {
			closed = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(c.end)
	return c
}

func (c *client) say(line string) reply {
	c.t.Helper()
	_, _ = c.out.WriteString(line + "\n")
	_ = c.out.Flush() // fails when the connection failed, which the reply tells
	var r reply
	if err := c.in.Decode(&r); err != nil {
		c.t.Fatalf("client ended: %v", err)
	}
	return r
}

// call asks once.
func (p place) call(t *testing.T, proto, addr string) reply {
	t.Helper()
	c := p.dial(t, proto, "", addr)
	defer c.end()
	return c.say("hello")
}

func (p place) ping(t *testing.T, addr string) error {
	t.Helper()
	return p.command(t, "ping", addr).Run()
}
