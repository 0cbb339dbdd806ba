package node

import (
	"net/netip"
	"strings"
	"testing"
)

func TestOurSettingsWinOverDefaultsAndArgumentsOverOurs(t *testing.T) {
	k := NewKubelet(KubeletOptions{NodeName: "n1", CgroupRoot: "/kombi", ClusterDNS: netip.MustParseAddr("10.43.0.10"), Port: 10250, MaxPods: 110,
		Args: []string{"max-pods=20", "--eviction-hard=memory.available<50Mi"}})
	server, err := k.server()
	if err != nil {
		t.Fatal(err)
	}
	c := server.KubeletConfiguration
	if c.MaxPods != 20 || c.EvictionHard["memory.available"] != "50Mi" {
		t.Errorf("arguments are lost: %d %v", c.MaxPods, c.EvictionHard)
	}
	if c.FailCgroupV1 || c.CgroupRoot != "/kombi" || c.ReadOnlyPort != 0 || c.Authentication.Anonymous.Enabled || !c.SeccompDefault {
		t.Errorf("our settings are lost: %+v", c)
	}
	k.opts.Args = []string{"max-podz=20"}
	if _, err := k.server(); err == nil || !strings.Contains(err.Error(), `no setting "max-podz"`) {
		t.Errorf("got %v", err)
	}
}
