package config

import "sort"

// foreign are keys of k3s that people bring along and that have no counterpart here, with what to do about each.
func foreign(key string) (next string, known bool) {
	later := map[string]string{
		"server": "joining of servers (kombi agent joins)", "agent-token": "joining", "agent-token-file": "joining", "cluster-init": "embedded etcd",
		"cluster-reset": "embedded etcd", "datastore-endpoint": "external datastores", "node-external-ip": "external addresses",
		"private-registry": "registry configuration", "system-default-registry": "registry configuration",
	}
	if what, ok := later[key]; ok {
		return "remove it: " + what + " arrives with a later release", true
	}
	other := map[string]string{
		"flannel-backend":            "use network-backend: auto, native or vxlan",
		"flannel-iface":              "remove it: the pod network is built in and follows node-ip",
		"flannel-ipv6-masq":          "remove it: what leaves the cluster has the node's address, in IPv6 as well",
		"flannel-conf":               "remove it: the pod network is built in",
		"disable-kube-proxy":         "remove it: there is no kube-proxy",
		"disable-cloud-controller":   "remove it: there is no cloud controller",
		"disable-helm-controller":    "remove it: there is no Helm controller",
		"disable-network-policy":     "remove it: network policy is part of the network, which disable: network leaves out",
		"kube-proxy-arg":             "remove it: there is no kube-proxy",
		"docker":                     "remove it: containers run in the built-in containerd",
		"container-runtime-endpoint": "remove it: containers run in the built-in containerd",
		"default-local-storage-path": "remove it: volumes are in <data-dir>/storage",
		"rootless":                   "remove it: Kombi needs root",
		"selinux":                    "remove it: SELinux labelling is not supported yet",
		"log":                        "remove it: logs go to standard error; redirect it, or let systemd keep them",
		"v":                          "use log-level: debug",
		"vmodule":                    "use log-level: debug",
		"alsologtostderr":            "remove it: logs go to standard error",
		"protect-kernel-defaults":    "use kubelet-arg: protect-kernel-defaults=true",
		"pause-image":                "remove it: the pause image is in the binary",
	}
	next, known = other[key]
	return next, known
}

// unknownKey explains a key that is not in the schema.
func unknownKey(name string, known []string, fallback string) *Problem {
	if next, ok := foreign(name); ok {
		return complain(next, "Kombi does not have this k3s key")
	}
	sorted := append([]string(nil), known...)
	sort.Strings(sorted)
	if near := Suggest(name, sorted); near != "" {
		return complain("did you mean "+near+"?", "there is no such key")
	}
	return complain(fallback, "there is no such key")
}
