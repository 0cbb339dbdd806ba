package network

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// svc describes a Service and its endpoints.
type svc struct {
	name, ip     string
	ports        []corev1.ServicePort
	backends     []string
	nodeOfEP     string
	modify       func(*corev1.Service)
	modifySlices func(*discoveryv1.EndpointSlice)
}

func port(name string, proto corev1.Protocol, port, target, nodePort int32) corev1.ServicePort {
	p := corev1.ServicePort{Name: name, Protocol: proto, Port: port, NodePort: nodePort}
	p.TargetPort.IntVal = target
	return p
}

// service creates the Service with its endpoints and waits until it is served.
func (e *env) service(s svc) {
	e.t.Helper()
	obj := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.name},
		Spec:       corev1.ServiceSpec{ClusterIP: s.ip, ClusterIPs: []string{s.ip}, Ports: s.ports, Type: corev1.ServiceTypeClusterIP},
	}
	if s.modify != nil {
		s.modify(obj)
	}
	_, err := e.client.CoreV1().Services("default").Create(e.t.Context(), obj, metav1.CreateOptions{})
	e.must(err)
	_, err = e.client.DiscoveryV1().EndpointSlices("default").Create(e.t.Context(), e.slice(s), metav1.CreateOptions{})
	e.must(err)
	e.settle(s)
	e.t.Cleanup(func() {
		ctx := context.Background()
		_ = e.client.CoreV1().Services("default").Delete(ctx, s.name, metav1.DeleteOptions{})
		_ = e.client.DiscoveryV1().EndpointSlices("default").Delete(ctx, s.name, metav1.DeleteOptions{})
	})
}

// endpoints replaces the endpoints of a Service.
func (e *env) endpoints(s svc) {
	e.t.Helper()
	_, err := e.client.DiscoveryV1().EndpointSlices("default").Update(e.t.Context(), e.slice(s), metav1.UpdateOptions{})
	e.must(err)
	e.settle(s)
}

// settle waits until the maps hold the service's backends.
func (e *env) settle(s svc) {
	e.t.Helper()
	e.eventually("service "+s.name+" is served", func() bool {
		for _, p := range s.ports {
			proto := services.TCP
			if p.Protocol == corev1.ProtocolUDP {
				proto = services.UDP
			}
			got, ok := e.net.dp.Services().Backends(services.Frontend{
				Addr: netip.MustParseAddr(s.ip), Port: uint16(p.Port), Proto: proto,
			})
			if !ok || len(got) != len(s.backends) {
				return false
			}
			for _, b := range s.backends {
				if !slices.Contains(got, netip.AddrPortFrom(netip.MustParseAddr(b), uint16(p.TargetPort.IntVal))) {
					return false
				}
			}
		}
		return true
	})
}

func (e *env) slice(s svc) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: s.name, Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if strings.Contains(s.ip, ":") {
		out.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range s.ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.TargetPort.IntVal})
	}
	node := nodeName
	if s.nodeOfEP != "" {
		node = s.nodeOfEP
	}
	for _, b := range s.backends {
		yes := true
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{b}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
		})
	}
	if s.modifySlices != nil {
		s.modifySlices(out)
	}
	return out
}
