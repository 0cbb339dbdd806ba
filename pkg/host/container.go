package host

import (
	"os"
	"strings"
)

func readAll(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

// findContainer names the container manager that this process runs in, or "". It follows what the managers
// themselves leave: systemd's note, the environment of the first process, and files of Docker and Podman.
func findContainer(mounts Mounts, read func(string) ([]byte, error), getenv func(string) string) string {
	if data, err := read("/run/systemd/container"); err == nil {
		if name := strings.TrimSpace(string(data)); name != "" {
			return name
		}
	}
	for _, env := range []string{getenv("container"), firstProcessEnv(read)} {
		if env != "" {
			return env
		}
	}
	if _, err := read("/run/.containerenv"); err == nil {
		return "podman"
	}
	// Docker's mark alone proves nothing: a disk image that was made from a container keeps it.
	_, hosts := mounts.At("/etc/hosts")
	if _, err := read("/.dockerenv"); err == nil && hosts {
		return "docker"
	}
	if getenv("KUBERNETES_SERVICE_HOST") != "" {
		return "kubernetes"
	}
	return ""
}

func firstProcessEnv(read func(string) ([]byte, error)) string {
	data, _ := read("/proc/1/environ")
	for _, e := range strings.Split(string(data), "\x00") {
		if name, ok := strings.CutPrefix(e, "container="); ok {
			return name
		}
	}
	return ""
}
