package dns

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestFindUpstreams(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::10/128")}
	for name, tc := range map[string]struct {
		explicit string
		files    map[string]string
		want     []string
		from     string
		why      []string // parts of the sentence
	}{
		"plain file": {
			files: map[string]string{resolvConfFile: "search lan\nnameserver 192.168.1.1\nnameserver 1.2.3.4\n"},
			want:  []string{"192.168.1.1", "1.2.3.4"}, from: resolvConfFile,
		},
		"IPv6, also link-local with its interface": {
			files: map[string]string{resolvConfFile: "nameserver 2001:db8::53\nnameserver fe80::1%eth0\n"},
			want:  []string{"2001:db8::53", "fe80::1%eth0"}, from: resolvConfFile,
		},
		"the same twice": {
			files: map[string]string{resolvConfFile: "nameserver 9.9.9.9\nnameserver 9.9.9.9\nnameserver ::ffff:9.9.9.9\n"},
			want:  []string{"9.9.9.9"}, from: resolvConfFile,
		},
		"own address in front is left out": {
			files: map[string]string{resolvConfFile: "nameserver 10.43.0.10\nnameserver fd43::10\nnameserver 192.168.1.1\n"},
			want:  []string{"192.168.1.1"}, from: resolvConfFile,
		},
		"loopback is left out": {
			files: map[string]string{resolvConfFile: "nameserver 127.0.0.1\nnameserver ::1\nnameserver 192.168.1.1\n"},
			want:  []string{"192.168.1.1"}, from: resolvConfFile,
		},
		"stub of systemd-resolved": {
			files: map[string]string{
				resolvConfFile: "nameserver 127.0.0.53\noptions edns0 trust-ad\n",
				resolvedFile:   "nameserver 192.168.1.1\n",
			},
			want: []string{"192.168.1.1"}, from: resolvedFile,
		},
		"stub beside another: the real ones are better": {
			files: map[string]string{
				resolvConfFile: "nameserver 127.0.0.53\nnameserver 1.1.1.1\n",
				resolvedFile:   "nameserver 192.168.1.1\n",
			},
			want: []string{"192.168.1.1"}, from: resolvedFile,
		},
		"stub beside another, and systemd-resolved knows none": {
			files: map[string]string{
				resolvConfFile: "nameserver 127.0.0.53\nnameserver 1.1.1.1\n",
				resolvedFile:   "# empty\n",
			},
			want: []string{"1.1.1.1"}, from: resolvConfFile,
		},
		"dnsmasq of NetworkManager": {
			files: map[string]string{
				resolvConfFile:     "nameserver 127.0.0.1\n",
				networkManagerFile: "nameserver 192.168.7.1\n",
			},
			want: []string{"192.168.7.1"}, from: networkManagerFile,
		},
		"in a Docker container": {
			files: map[string]string{resolvConfFile: "nameserver 127.0.0.11\noptions ndots:0\n"},
			want:  []string{"127.0.0.11"}, from: resolvConfFile,
		},
		"nothing but loopback": {
			files: map[string]string{resolvConfFile: "nameserver 127.0.0.1\n"},
			why:   []string{"cannot be resolved", "127.0.0.1 (loopback)", "--resolv-conf"},
		},
		"nothing but the cluster": {
			files: map[string]string{resolvConfFile: "nameserver 10.43.0.10\n"},
			why:   []string{"10.43.0.10 (this cluster)"},
		},
		"empty file": {
			files: map[string]string{resolvConfFile: ""},
			why:   []string{"names no resolver"},
		},
		"no file": {
			why: []string{"/etc/resolv.conf", "does not exist"},
		},
		"not an address": {
			files: map[string]string{resolvConfFile: "nameserver dns.example.org\nnameserver 0.0.0.0\nnameserver 224.0.0.251\n"},
			why:   []string{`"dns.example.org" (not an address)`, "0.0.0.0", "224.0.0.251"},
		},
		"explicit file may name loopback": {
			explicit: "/etc/kombi/resolv.conf",
			files: map[string]string{
				"/etc/kombi/resolv.conf": "nameserver 127.0.0.1\n",
				resolvConfFile:           "nameserver 192.168.1.1\n",
			},
			want: []string{"127.0.0.1"}, from: "/etc/kombi/resolv.conf",
		},
		"explicit file may not name the cluster, and is not replaced": {
			explicit: "/etc/kombi/resolv.conf",
			files: map[string]string{
				"/etc/kombi/resolv.conf": "nameserver 10.43.0.10\n",
				resolvConfFile:           "nameserver 192.168.1.1\n",
			},
			why: []string{"/etc/kombi/resolv.conf names only 10.43.0.10 (this cluster)"},
		},
		"explicit file that is not there": {
			explicit: "/nowhere",
			why:      []string{"/nowhere"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := FindUpstreams(tc.explicit, own, func(path string) ([]byte, error) {
				if text, ok := tc.files[path]; ok {
					return []byte(text), nil
				}
				return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
			})
			if !slices.Equal(got.Servers, tc.want) || got.From != tc.from {
				t.Errorf("got %v from %q, want %v from %q", got.Servers, got.From, tc.want, tc.from)
			}
			if (got.Why == "") != (len(tc.why) == 0) {
				t.Errorf("why = %q, want parts %q", got.Why, tc.why)
			}
			for _, part := range tc.why {
				if !strings.Contains(got.Why, part) {
					t.Errorf("why = %q lacks %q", got.Why, part)
				}
			}
		})
	}
}
