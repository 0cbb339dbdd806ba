package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
	"github.com/kombi-k8s/kombi/pkg/network/ipam"
	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// maxRequest bounds what a client of the socket may send; a GC request lists all pods.
const maxRequest = 1 << 20

// attachWait is how long ADD waits for the node to become ready for pods.
const attachWait = 30 * time.Second

// cniServer answers kombi-cni.
type cniServer struct {
	ln   net.Listener
	pods *pods
	log  *slog.Logger
}

// listenCNI opens the socket. One left by a dead process is replaced.
func listenCNI(path string, p *pods, log *slog.Logger) (*cniServer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot listen for kombi-cni: %w", err)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("cannot listen for kombi-cni: another process serves %s; is Kombi running already?", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace the old socket of kombi-cni: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for kombi-cni at %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, fmt.Errorf("cannot protect %s: %w", path, err)
	}
	return &cniServer{ln: ln, pods: p, log: log}, nil
}

// serve answers requests until ctx is done, and then those under way.
func (s *cniServer) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := s.ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("kombi-cni socket: %w", err)
		}
		wg.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			s.handle(ctx, c)
		})
	}
}

func (s *cniServer) handle(ctx context.Context, c net.Conn) {
	resp := cniapi.Response{}
	req := cniapi.Request{}
	err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&req)
	if err != nil {
		err = &cniapi.Error{Code: cniapi.CodeDecode, Msg: "cannot read the request: " + err.Error()}
	} else {
		resp.Result, err = s.call(ctx, &req)
	}
	if err != nil {
		var ce *cniapi.Error
		if !errors.As(err, &ce) {
			ce = &cniapi.Error{Code: cniapi.CodeInternal, Msg: err.Error()}
		}
		resp.Error = ce
		level := slog.LevelWarn
		if req.Command == "STATUS" || req.Command == "CHECK" {
			level = slog.LevelDebug
		}
		s.log.Log(ctx, level, "CNI request failed", "command", req.Command, "container", req.ContainerID, "err", err)
	}
	if err := json.NewEncoder(c).Encode(&resp); err != nil && req.Command == "ADD" && resp.Error == nil {
		// The runtime gave up waiting and may have asked for the removal already.
		s.log.Warn("nobody waits for the pod's network any more; removing it", "container", req.ContainerID)
		if err := s.pods.del(req.ContainerID, req.IfName); err != nil {
			s.log.Error("cannot remove the pod's network", "container", req.ContainerID, "err", err)
		}
	}
}

// config is the part of the network configuration that matters here.
type cniConfig struct {
	CNIVersion    string `json:"cniVersion"`
	RuntimeConfig struct {
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	ValidAttachments []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	} `json:"cni.dev/valid-attachments"`
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

func (s *cniServer) call(ctx context.Context, req *cniapi.Request) (json.RawMessage, error) {
	conf := cniConfig{}
	if len(req.Config) > 0 {
		if err := json.Unmarshal(req.Config, &conf); err != nil {
			return nil, &cniapi.Error{Code: cniapi.CodeDecode, Msg: "cannot read the network configuration: " + err.Error()}
		}
	}
	switch req.Command {
	case "ADD":
		return s.add(ctx, req, &conf)
	case "DEL":
		if err := need(req, "CNI_CONTAINERID", req.ContainerID, "CNI_IFNAME", req.IfName); err != nil {
			return nil, err
		}
		return nil, s.pods.del(req.ContainerID, req.IfName)
	case "CHECK":
		if err := need(req, "CNI_CONTAINERID", req.ContainerID, "CNI_IFNAME", req.IfName); err != nil {
			return nil, err
		}
		return nil, s.pods.check(req.ContainerID, req.IfName)
	case "GC":
		valid := map[string]bool{}
		for _, a := range conf.ValidAttachments {
			valid[ipam.Key(a.ContainerID, a.IfName)] = true
		}
		return nil, s.pods.gc(valid)
	case "STATUS":
		if s.pods.serving() {
			return nil, nil
		}
		return nil, notReady(cniapi.CodeUnavailable)
	}
	return nil, &cniapi.Error{Code: cniapi.CodeInvalidEnv, Msg: fmt.Sprintf("CNI_COMMAND %q is not supported", req.Command)}
}

func (s *cniServer) add(ctx context.Context, req *cniapi.Request, conf *cniConfig) (json.RawMessage, error) {
	if err := need(req, "CNI_CONTAINERID", req.ContainerID, "CNI_IFNAME", req.IfName, "CNI_NETNS", req.Netns); err != nil {
		return nil, err
	}
	// What the runtime cannot read must not be made.
	version := conf.CNIVersion
	switch version {
	case "":
		version = types100.ImplementedSpecVersion
	case "0.3.0", "0.3.1", "0.4.0", "1.0.0", types100.ImplementedSpecVersion:
	default:
		return nil, &cniapi.Error{Code: cniapi.CodeIncompatible, Msg: fmt.Sprintf(
			"cniVersion %s is not supported; use one from 0.3.0 to %s", version, types100.ImplementedSpecVersion)}
	}
	ports, err := hostPorts(conf.RuntimeConfig.PortMappings)
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeInvalidConfig, Msg: err.Error()}
	}
	select {
	case <-s.pods.ready:
	case <-time.After(attachWait):
		return nil, notReady(cniapi.CodeTryAgain)
	case <-ctx.Done():
		return nil, &cniapi.Error{Code: cniapi.CodeTryAgain, Msg: "kombi is stopping"}
	}
	args := parseArgs(req.Args)
	namespace, pod := args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"]
	if err := s.pods.policy.await(ctx, namespace, pod, types.UID(args["K8S_POD_UID"])); err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeTryAgain, Msg: err.Error()}
	}
	rec, err := s.pods.add(attachment{
		containerID: req.ContainerID, ifName: req.IfName, netns: req.Netns,
		namespace: namespace, pod: pod, ports: ports,
	})
	if err != nil {
		return nil, err
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: rec.HostDevice, Mac: rec.HostMAC, Mtu: rec.MTU},
			{Name: rec.IfName, Mac: rec.MAC, Mtu: rec.MTU, Sandbox: rec.Netns},
		},
	}
	for _, a := range rec.Addrs {
		result.IPs = append(result.IPs, &types100.IPConfig{
			Interface: types100.Int(1), Address: *hostNet(a), Gateway: gatewayOf(a).AsSlice(),
		})
	}
	out, err := result.GetAsVersion(version)
	if err != nil {
		return nil, &cniapi.Error{Code: cniapi.CodeIncompatible, Msg: err.Error()}
	}
	return json.Marshal(out)
}

func notReady(code uint) error {
	return &cniapi.Error{Code: code, Msg: "the node is not ready for pods: it waits for its pod prefix (spec.podCIDRs) or for the API"}
}

// need checks pairs of a name and a value.
func need(req *cniapi.Request, pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return &cniapi.Error{Code: cniapi.CodeInvalidEnv, Msg: fmt.Sprintf("%s needs %s", req.Command, pairs[i])}
		}
	}
	return nil
}

func hostPorts(in []portMapping) ([]services.HostPort, error) {
	var out []services.HostPort
	for _, m := range in {
		if m.HostPort == 0 {
			continue
		}
		hp := services.HostPort{
			HostPort: uint16(m.HostPort),
			Pod:      netip.AddrPortFrom(netip.Addr{}, uint16(m.ContainerPort)),
		}
		if m.HostPort < 0 || m.HostPort > 65535 || m.ContainerPort < 1 || m.ContainerPort > 65535 {
			return nil, fmt.Errorf("host port %d to container port %d is out of range", m.HostPort, m.ContainerPort)
		}
		switch strings.ToUpper(m.Protocol) {
		case "", "TCP":
			hp.Proto = services.TCP
		case "UDP":
			hp.Proto = services.UDP
		default:
			return nil, fmt.Errorf("host port %d: protocol %q is not supported; use TCP or UDP", m.HostPort, m.Protocol)
		}
		if m.HostIP != "" {
			a, err := netip.ParseAddr(m.HostIP)
			if err != nil {
				return nil, fmt.Errorf("host port %d: %w", m.HostPort, err)
			}
			if !a.IsUnspecified() {
				hp.HostAddr = a.Unmap()
			}
		}
		out = append(out, hp)
	}
	return out, nil
}

// parseArgs reads "K=V;K=V".
func parseArgs(s string) map[string]string {
	out := map[string]string{}
	for _, kv := range strings.Split(s, ";") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			out[k] = v
		}
	}
	return out
}
