package config

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Paths is every file and folder that Kombi derives from its configuration: the one place for each of them.
// Nothing is created here.
type Paths struct {
	DataDir string
	RunDir  string

	Lock string // held while a server or an agent runs with this data directory; contains its process id
	Bin  string // unpacked programs, one folder for each payload hash

	Server           string // everything below is readable by root only
	TLS              string // certificate authorities, leaf certificates and keys
	Credentials      string // kubeconfigs of the parts in the process
	ServerToken      string // the join token
	Agent            string // identity of a node that joined, mode 0700
	EncryptionConfig string // keys that encrypt Secrets at rest
	AuditPolicy      string
	AuditLog         string // empty: no audit log
	DBDir            string
	DB               string // the SQLite file
	Snapshots        string // snapshots of the datastore

	Node       string // the node's own state: certificates, CNI configuration
	NodeTLS    string
	CNIConfDir string

	KubeletRoot  string
	KubeletCerts string
	StaticPods   string
	PodLogs      string

	ContainerdRoot   string
	ContainerdState  string
	ContainerdSocket string
	ContainerdConfig string // written for people and tools to read; drop-ins go to ContainerdConfig + ".d"
	RegistryHosts    string // certs.d folders that configure registries

	Network       string // state of the data plane: IPAM
	NetworkSocket string // kombi-cni talks to the node here
	BPF           string // pinned maps and links

	Images    string // image archives dropped here are imported
	Manifests string // the user's manifests; subfolders are named sets
	Storage   string // volumes of the default storage class

	Kubeconfig    string // the administrator's
	ControlSocket string // kombi status, kombi stop
	StartRecord   string // what kombi status prints about the last start
}

// RunDir is the folder for sockets and other things that do not outlive a boot: run-dir when it is set, /run/kombi
// for the default data directory, and <data-dir>/run otherwise, so that several servers do not meet.
func (c *Config) RunDir() string {
	switch {
	case c.RuntimeDir != "":
		return c.RuntimeDir
	case c.DataDir == DefaultDataDir || c.DataDir == "":
		return DefaultRunDir
	}
	return filepath.Join(c.DataDir, "run")
}

// Instance tells servers on one machine apart where names are global (pinned eBPF objects, cgroups, interfaces): it
// is empty for the default data directory and eight hexadecimal digits of the path's hash otherwise.
func (c *Config) Instance() string {
	if c.DataDir == DefaultDataDir || c.DataDir == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(c.DataDir))
	return hex.EncodeToString(sum[:4])
}

// instanceName is "kombi", or "kombi-<instance>" for a data directory that is not the default.
func (c *Config) instanceName() string {
	if i := c.Instance(); i != "" {
		return "kombi-" + i
	}
	return "kombi"
}

// CgroupRootPath is the cgroup, as an absolute path inside the hierarchy, below which pods are put: /kombi, or
// /kombi-<instance>, unless cgroup-root names another.
func (c *Config) CgroupRootPath() string {
	if c.CgroupRoot != "" && c.CgroupRoot != "auto" {
		return filepath.Clean("/" + c.CgroupRoot)
	}
	return "/" + c.instanceName()
}

// Paths derives all paths from DataDir, RunDir and the few keys that name a path of their own.
func (c *Config) Paths() Paths {
	dataDir := c.DataDir
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	data := func(elem ...string) string { return filepath.Join(append([]string{dataDir}, elem...)...) }
	run := func(elem ...string) string { return filepath.Join(append([]string{c.RunDir()}, elem...)...) }
	podLogs := "/var/log/pods"
	if c.Instance() != "" {
		podLogs = data("log", "pods")
	}
	return Paths{
		DataDir: dataDir,
		RunDir:  c.RunDir(),
		Lock:    data("kombi.lock"),
		Bin:     data("bin"),

		Server:           data("server"),
		TLS:              data("server", "tls"),
		Credentials:      data("server", "cred"),
		ServerToken:      data("server", "token"),
		Agent:            data("agent"),
		EncryptionConfig: data("server", "cred", "encryption-config.yaml"),
		AuditPolicy:      data("server", "audit-policy.yaml"),
		AuditLog:         c.AuditLog,
		DBDir:            data("server", "db"),
		DB:               data("server", "db", "state.db"),
		Snapshots:        data("server", "db", "snapshots"),

		Node:       data("node"),
		NodeTLS:    data("node", "tls"),
		CNIConfDir: data("node", "cni"),

		KubeletRoot:  data("kubelet"),
		KubeletCerts: data("kubelet", "pki"),
		StaticPods:   data("pod-manifests"),
		PodLogs:      podLogs,

		ContainerdRoot:   data("containerd"),
		ContainerdState:  run("containerd"),
		ContainerdSocket: run("containerd", "containerd.sock"),
		ContainerdConfig: data("node", "containerd.toml"),
		RegistryHosts:    data("node", "certs.d"),

		Network:       data("network"),
		NetworkSocket: run("network.sock"),
		BPF:           filepath.Join("/sys/fs/bpf", c.instanceName()),

		Images:    data("images"),
		Manifests: data("manifests"),
		Storage:   data("storage"),

		Kubeconfig:    c.WriteKubeconfig,
		ControlSocket: run("kombi.sock"),
		StartRecord:   run("start.json"),
	}
}
