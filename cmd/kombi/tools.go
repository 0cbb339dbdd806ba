package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"

	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/node"
)

// tool is an upstream command line; args[0] is its name.
type tool func(args []string) int

func toolNamed(name string) (tool, bool) {
	switch name {
	case "kubectl":
		return runKubectl, true
	case "ctr":
		return runCtr, true
	case "crictl":
		return runCrictl, true
	}
	return nil, false
}

// settings returns the configuration that a running server would have, for
// commands that only look for its files; mistakes are the server's to report.
func settings() *config.Config {
	c, _ := config.Load(config.LoadOptions{})
	return c
}

func runKubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" {
		// Only when the user has none of their own.
		home, err := os.UserHomeDir()
		own := filepath.Join(home, ".kube", "config")
		if _, statErr := os.Stat(own); err != nil || statErr != nil {
			_ = os.Setenv("KUBECONFIG", settings().Paths().Kubeconfig)
		}
	}
	os.Args = args
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runCtr(args []string) int {
	setDefault("CONTAINERD_ADDRESS", settings().Paths().ContainerdSocket)
	setDefault("CONTAINERD_NAMESPACE", node.CRINamespace)
	if err := app.New().Run(context.Background(), args); err != nil {
		fmt.Fprintf(os.Stderr, "ctr: %v\n", err)
		return 1
	}
	return 0
}

// runCrictl hands over to the program in our payload: upstream offers crictl
// only as a program.
func runCrictl(args []string) int {
	endpoint := "unix://" + settings().Paths().ContainerdSocket
	setDefault("CONTAINER_RUNTIME_ENDPOINT", endpoint)
	setDefault("IMAGE_SERVICE_ENDPOINT", endpoint)
	program := filepath.Join(binDir(), "crictl")
	err := syscall.Exec(program, append([]string{"crictl"}, args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "crictl: cannot run %s: %v\n", program, err)
	return 1
}

func setDefault(name, value string) {
	if os.Getenv(name) == "" {
		_ = os.Setenv(name, value)
	}
}

// binDir is the folder of the programs that belong to this one: the launcher
// unpacked them side by side.
func binDir() string {
	self, err := os.Executable()
	if err != nil {
		return "."
	}
	return filepath.Dir(self)
}
