package badinput

import (
	"os"
	"path/filepath"
	"testing"
)

// TestConfiguration has rows that are refused when the configuration is loaded, by kombi server as by kombi config
// validate, with the same sentence.
func TestConfiguration(t *testing.T) {
	for _, row := range []struct {
		name   string
		file   string // config.yaml
		dropIn string // config.yaml.d/10.yaml
		env    string
		args   []string
		want   []string
	}{
		{name: "unknown flag", args: []string{"--cluster-cdir=10.1.0.0/16"},
			want: []string{"flag --cluster-cdir: there is no such key", "did you mean cluster-cidr?"}},
		{name: "unknown short flag", args: []string{"-Z"}, want: []string{"flag -Z: there is no such flag", "see --help"}},
		{name: "flag without its value", args: []string{"--node-ip"}, want: []string{"flag --node-ip: the value is missing", "write --node-ip="}},
		{name: "surplus argument", args: []string{"surplus"}, want: []string{`"surplus"`, "see --help"}},
		{name: "unknown key", file: "debug: false\nnode_nam: edge\n",
			want: []string{"config.yaml:2: node_nam: there is no such key", "did you mean node-name?"}},
		{name: "unknown key in a drop-in", dropIn: "max-pod: 3\n", want: []string{"config.yaml.d/10.yaml:1: max-pod: there is no such key", "did you mean max-pods?"}},
		{name: "key of k3s", file: "flannel-backend: wireguard-native\n", want: []string{"config.yaml:1: flannel-backend: Kombi does not have this k3s key", "use network-backend: auto, native or vxlan"}},
		{name: "environment variable with a typing error", env: "KOMBI_CLUSTERCIDR=10.1.0.0/16",
			want: []string{"environment KOMBI_CLUSTERCIDR: there is no such key", "did you mean KOMBI_CLUSTER_CIDR?"}},
		{name: "duplicate key", file: "max-pods: 1\nmax-pods: 2\n", want: []string{"config.yaml:2: max-pods: the key was already set in line 1", "keep one"}},
		{name: "two documents", file: "max-pods: 1\n---\nmax-pods: 2\n", want: []string{"config.yaml:2: a second YAML document begins here", "put all keys in one document"}},
		{name: "second of three documents broken", file: "max-pods: 1\n---\ntls-san: [a\n---\nx: y\n", want: []string{"config.yaml:3: this is not YAML", "correct this line"}},
		{name: "broken YAML", file: "max-pods: 1\ntls-san: [a, b\n", want: []string{"config.yaml:2: this is not YAML", "correct this line"}},
		{name: "tab", file: "tls-san:\n\t- a\n", want: []string{"config.yaml:2: this is not YAML", "correct this line"}},
		{name: "binary file", file: "\x7fELF\x00\x01", want: []string{"config.yaml", "this is not YAML", "correct this line"}},
		{name: "list as file", file: "- max-pods\n", want: []string{"config.yaml:1: the file holds a list", "write lines such as"}},
		{name: "mapping as value", file: "node-label:\n  zone: a\n", want: []string{"config.yaml:2: node-label: the value is a mapping", "give one value or a list"}},
		{name: "word as number", file: "max-pods: many\n", want: []string{`config.yaml:1: max-pods: "many" is not a number`, "give a whole number from 1 to 1000"}},
		{name: "port out of range", args: []string{"--https-listen-port=65536"}, want: []string{"flag --https-listen-port: 65536 is out of range", "from 1 to 65535"}},
		{name: "relative data-dir", args: []string{"--data-dir=./state"}, want: []string{`flag --data-dir: "./state" is a relative path`, "give an absolute path"}},
		{name: "not a network", args: []string{"--service-cidr=10.43.0.0/33"}, want: []string{`flag --service-cidr: "10.43.0.0/33" is not a network`, "give a network such as"}},
		{name: "overlapping CIDRs", args: []string{"--cluster-cidr=10.42.0.0/15"}, want: []string{"cluster-cidr 10.42.0.0/15 and service-cidr 10.43.0.0/16 overlap", "choose two networks"}},
		{name: "CIDR of the machine's own network", args: []string{"--cluster-cidr=10.200.0.0/16"}, want: []string{"10.200.0.0/16 contains this machine's own address 10.200.0.2", "choose a network"}},
		{name: "IPv6 for pods only", file: "cluster-cidr: 10.42.0.0/16,fd00:42::/56\n", want: []string{"config.yaml:1: cluster-cidr: cluster-cidr is IPv4 and IPv6, and service-cidr is IPv4", "give both the same families in the same order, such as 10.42.0.0/16,fd42::/56 and 10.43.0.0/16,fd43::/112"}},
		{name: "families in another order", args: []string{"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=fd43::/112,10.43.0.0/16"}, want: []string{"cluster-cidr is IPv4 and IPv6, and service-cidr is IPv6 and IPv4", "in the same order"}},
		{name: "two networks of one family", env: "KOMBI_CLUSTER_CIDR=10.42.0.0/16,10.44.0.0/16", want: []string{"environment KOMBI_CLUSTER_CIDR: there is more than one IPv4 network", "one of IPv4 and one of IPv6"}},
		{name: "no network", file: "service-cidr: []\n", want: []string{"config.yaml:1: service-cidr: there is no network", "give a network such as 10.43.0.0/16"}},
		{name: "IPv6 network of an unusable size", args: []string{"--cluster-cidr=fd42::/32", "--service-cidr=fd43::/112"}, want: []string{"fd42::/32 has an unusable size", "from /48 to /64"}},
		{name: "too many IPv6 services", file: "cluster-cidr: [10.42.0.0/16, fd42::/56]\nservice-cidr:\n- 10.43.0.0/16\n- fd43::/64\n", want: []string{"config.yaml:4: service-cidr: fd43::/64 has an unusable size", "from /108 to /123"}},
		{name: "link-local network", args: []string{"--cluster-cidr=fe80::/56", "--service-cidr=fd43::/112"}, want: []string{"fe80::/56 overlaps fe80::/10, which is reserved (link-local)", "such as fd42::/56"}},
		{name: "DNS address of another family", args: []string{"--cluster-dns=fd43::a"}, want: []string{"fd43::a is an IPv6 address, and the cluster has no IPv6 network", "remove it"}},
		{name: "node address of another family", args: []string{"--node-ip=10.200.0.2,fd00::2"}, want: []string{"fd00::2 is an IPv6 address, and the cluster has no IPv6 network", "remove it"}},
		{name: "API address of the second family", args: []string{"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112", "--advertise-address=fd00::2"},
			want: []string{"fd00::2 is an IPv6 address, and the cluster's services, with the API's, are IPv4 first", "give an IPv4 address"}},
		{name: "DNS address outside", args: []string{"--cluster-dns=10.42.0.10"}, want: []string{"cluster-dns 10.42.0.10 is outside service-cidr 10.43.0.0/16", "choose an address such as 10.43.0.10"}},
		{name: "node name with capitals", args: []string{"--node-name=EdgeBox"}, want: []string{`flag --node-name: "EdgeBox" has capitals`, "write edgebox"}},
		{name: "node name with an underscore", args: []string{"--node-name=edge_box"}, want: []string{`"edge_box" is not a DNS name`, "use lower-case letters"}},
		{name: "label without value", args: []string{"--node-label=zone"}, want: []string{`the label "zone" has no value`, "write zone=<value>"}},
		{name: "taint without effect", args: []string{"--node-taint=a=b"}, want: []string{`the taint "a=b" has no effect`, "write key=value:NoSchedule"}},
		{name: "unknown part to disable", args: []string{"--disable=storge"}, want: []string{`"storge" is not a part`, "did you mean storage?"}},
		{name: "unknown option of the kubelet", file: "kubelet-arg:\n- max-pod=3\n", want: []string{"config.yaml:2: kubelet-arg:", "max-pod"}},
		{name: "unknown option of the API server", args: []string{"--kube-apiserver-arg=audit-log-maxagee=3"}, want: []string{"flag --kube-apiserver-arg:", "audit-log-maxagee"}},
		{name: "short token", env: "KOMBI_TOKEN=secret", want: []string{"environment KOMBI_TOKEN: the token has only 6 characters", "use 16 or more"}},
		{name: "token file that is not there", args: []string{"--token-file=/nonexistent"}, want: []string{"flag --token-file: the file cannot be read: no such file or directory", "correct the path"}},
		{name: "kubeconfig for everybody to write", args: []string{"--write-kubeconfig-mode=666"}, want: []string{`with mode "666" everybody can change the file`, "such as 0600"}},
		{name: "two settings that contradict each other", args: []string{"--debug", "--log-level=error"}, want: []string{"debug and log-level error contradict each other", "keep one"}},
		{name: "configuration file that is not there", args: []string{"--config=/nonexistent.yaml"}, want: []string{"/nonexistent.yaml: the file cannot be read: no such file or directory", "correct the path"}},
		{name: "configuration file that is a folder", args: []string{"--config=/etc"}, want: []string{"/etc: the file cannot be read: it is a folder", "correct the path"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			path, env := program(t)
			dir := shortDir(t)
			config := filepath.Join(dir, "config.yaml")
			put(t, config, row.file)
			if row.dropIn != "" {
				put(t, config+".d/10.yaml", row.dropIn)
			}
			data := filepath.Join(dir, "data")
			env = append(env, "KOMBI_CONFIG="+config, "KOMBI_DATA_DIR="+data, "KOMBI_WRITE_KUBECONFIG="+dir+"/kombi.yaml")
			if row.env != "" {
				env = append(env, row.env)
			}
			before := listing(t, dir)
			for _, command := range [][]string{{"server"}, {"config", "validate"}} {
				run(t, start{path: path, env: env, args: append(command, row.args...)}).refused(t, row.want...)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("something was written:\n%s", after)
			}
		})
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
