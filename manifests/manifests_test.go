package manifests

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestEveryBundledSetHasItsFolder(t *testing.T) {
	for _, folder := range []string{"crds", "dns", "metrics-server", RBACFolder, "storage"} {
		files, err := fs.ReadDir(FS(), folder)
		if err != nil || len(files) == 0 {
			t.Errorf("folder %s: %d files, error %v", folder, len(files), err)
		}
	}
}

func TestTheDNSServiceHasTheAddressesOfTheCluster(t *testing.T) {
	data, err := fs.ReadFile(FS(), "dns/service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	four, six := netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("fd43::a")
	for _, tc := range []struct {
		addrs []netip.Addr
		want  string
	}{
		{[]netip.Addr{four}, "10.43.0.10 [10.43.0.10] SingleStack"},
		{[]netip.Addr{six}, "fd43::a [fd43::a] SingleStack"},
		{[]netip.Addr{four, six}, "10.43.0.10 [10.43.0.10 fd43::a] PreferDualStack"},
		{[]netip.Addr{six, four}, "fd43::a [fd43::a 10.43.0.10] PreferDualStack"},
	} {
		vars := Vars(tc.addrs, "cluster.local")
		var s corev1.Service
		if err := yaml.UnmarshalStrict([]byte(os.Expand(string(data), func(name string) string { return vars[name] })), &s); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.Spec.ClusterIP, " ", s.Spec.ClusterIPs, " ", *s.Spec.IPFamilyPolicy); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}
