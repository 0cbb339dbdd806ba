// Command kombi-cni is the CNI plugin. It passes what the container runtime asks
// for to the running Kombi and prints the answer; all work is done there.
package main

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
)

const (
	defaultSocket = "/run/kombi/cni.sock"
	latest        = "1.1.0"
	timeout       = 60 * time.Second
)

func main() { os.Exit(run(os.Stdin, os.Stdout, os.Getenv)) }

// run does one call and returns the exit status.
func run(in io.Reader, out io.Writer, getenv func(string) string) int {
	fail := func(version string, code uint, msg, details string) int {
		print(out, &cniapi.Error{CNIVersion: version, Code: code, Msg: msg, Details: details})
		return 1
	}
	command := getenv("CNI_COMMAND")
	if command == "" {
		return fail(latest, cniapi.CodeInvalidEnv, "CNI_COMMAND is not set; kombi-cni is run by the container runtime, not by hand", "")
	}
	config, err := io.ReadAll(in)
	if err != nil {
		return fail(latest, cniapi.CodeIO, "cannot read the network configuration from standard input", err.Error())
	}
	var conf struct {
		CNIVersion string `json:"cniVersion"`
		Socket     string `json:"socket"`
	}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &conf); err != nil {
			return fail(latest, cniapi.CodeDecode, "the network configuration on standard input is not JSON", err.Error())
		}
	}
	if conf.CNIVersion == "" {
		conf.CNIVersion = latest
	}
	if command == "VERSION" {
		print(out, map[string]any{
			"cniVersion":        conf.CNIVersion,
			"supportedVersions": []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", latest},
		})
		return 0
	}
	if conf.Socket == "" {
		conf.Socket = defaultSocket
	}
	resp, err := cniapi.Call(conf.Socket, &cniapi.Request{
		Command:     command,
		ContainerID: getenv("CNI_CONTAINERID"),
		Netns:       getenv("CNI_NETNS"),
		IfName:      getenv("CNI_IFNAME"),
		Args:        getenv("CNI_ARGS"),
		Config:      config,
	}, timeout)
	if err != nil {
		code := uint(cniapi.CodeTryAgain)
		if command == "STATUS" {
			code = cniapi.CodeUnavailable
		}
		return fail(conf.CNIVersion, code, err.Error(), "")
	}
	if resp.Error != nil {
		resp.Error.CNIVersion = conf.CNIVersion
		print(out, resp.Error)
		return 1
	}
	if len(resp.Result) > 0 {
		_, _ = out.Write(append(resp.Result, '\n'))
	}
	return 0
}

func print(out io.Writer, v any) {
	raw, _ := json.Marshal(v)
	_, _ = out.Write(append(raw, '\n'))
}
