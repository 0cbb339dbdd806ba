package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	serve := func(name, answer string) string {
		path := filepath.Join(dir, name)
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				var req cniapi.Request
				_ = json.NewDecoder(c).Decode(&req)
				fmt.Fprint(c, strings.ReplaceAll(answer, "$ID", req.ContainerID))
				c.Close()
			}
		}()
		return path
	}
	good := serve("good", `{"result":{"cniVersion":"1.0.0","id":"$ID"}}`)
	bad := serve("bad", `{"error":{"code":11,"msg":"not now"}}`)
	silent := serve("silent", ``)
	nonsense := serve("nonsense", `hello`)

	conf := func(socket string) string { return fmt.Sprintf(`{"cniVersion":"1.0.0","socket":%q}`, socket) }
	for _, c := range []struct {
		name, command, in string
		status            int
		want              []string
	}{
		{"passes on the result", "ADD", conf(good), 0, []string{`"id":"abc"`}},
		{"passes on the error", "ADD", conf(bad), 1, []string{`"code":11`, `"msg":"not now"`, `"cniVersion":"1.0.0"`}},
		{"kombi is not running", "ADD", conf(dir + "/none"), 1, []string{`"code":11`, "kombi is not running: " + dir + "/none"}},
		{"status without kombi", "STATUS", conf(dir + "/none"), 1, []string{`"code":50`}},
		{"kombi died", "ADD", conf(silent), 1, []string{"stopped before it answered"}},
		{"not kombi", "ADD", conf(nonsense), 1, []string{"something else than JSON"}},
		{"no command", "", conf(good), 1, []string{`"code":4`, "CNI_COMMAND"}},
		{"no JSON", "ADD", "{", 1, []string{`"code":6`}},
		{"version needs nobody", "VERSION", `{"cniVersion":"0.4.0"}`, 0, []string{`"cniVersion":"0.4.0"`, `"1.1.0"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			env := map[string]string{"CNI_COMMAND": c.command, "CNI_CONTAINERID": "abc"}
			status := run(strings.NewReader(c.in), &out, func(k string) string { return env[k] })
			if status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if !json.Valid(out.Bytes()) {
				t.Errorf("not JSON: %s", out.String())
			}
			for _, w := range c.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%q is not in %s", w, out.String())
				}
			}
		})
	}
}
