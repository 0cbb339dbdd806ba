// standin plays the main program in the tests of the installation: it has the
// commands that install.sh uses, and starts in no time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kombi-k8s/kombi/pkg/payload"
	"github.com/kombi-k8s/kombi/pkg/uninstall"
)

var version = "v0.0.1" // stamped by the test

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "kombi: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dataDir := flags.String("data-dir", payload.DataDir(os.Args, os.Getenv), "")
	label := flags.String("node-label", "", "")
	wait := flags.Duration("wait", 0, "")
	yes := flags.Bool("yes", false, "")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	socket := filepath.Join(*dataDir, "server", "sock")
	switch args[0] {
	case "version":
		fmt.Println("kombi", version)
		return nil
	case "server":
		return server(*dataDir, socket, *label)
	case "status":
		for deadline := time.Now().Add(*wait); ; time.Sleep(10 * time.Millisecond) {
			c, err := net.Dial("unix", socket)
			if err == nil {
				return c.Close()
			}
			if time.Now().After(deadline) {
				return errors.New("kombi is not running")
			}
		}
	case "uninstall":
		return uninstall.Run(context.Background(), uninstall.Options{DataDir: *dataDir, RunDir: "/run/kombi", Yes: *yes, Out: os.Stdout})
	}
	return fmt.Errorf("no command %q", args[0])
}

// server leaves a record of its start and a "pod" that outlives it.
func server(dataDir, socket, label string) error {
	if reason := os.Getenv("KOMBI_STANDIN_FAILS"); reason != "" {
		return errors.New(reason)
	}
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	record := fmt.Sprintf("%s %d %q %s\n", version, os.Getpid(), label, os.Getenv("KOMBI_TOKEN"))
	f, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(record); err != nil {
		return err
	}
	_ = f.Close()
	if _, err := os.Stat(filepath.Join(dir, "pod")); err != nil {
		pod := exec.Command("sleep", "3600")
		pod.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := pod.Start(); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "pod"), []byte(fmt.Sprint(pod.Process.Pid)), 0o600); err != nil {
			return err
		}
	}
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	if path := os.Getenv("NOTIFY_SOCKET"); path != "" && !strings.HasPrefix(path, "@") {
		if c, err := net.Dial("unixgram", path); err == nil {
			_, _ = c.Write([]byte("READY=1"))
			_ = c.Close()
		}
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	<-term
	return nil
}
