package dns

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
)

const (
	// syncPoll is how often the first synchronization with the API server is
	// looked for; CoreDNS offers no signal for it.
	syncPoll = 10 * time.Millisecond
	// syncPatience is after which a person is told what the wait is for.
	syncPatience = 10 * time.Second
)

// Run answers queries until ctx is done. It listens right away: names outside
// the cluster resolve, names of the cluster get SERVFAIL, which resolvers retry.
// It is ready once it knows the cluster's services.
func (d *DNS) Run(ctx context.Context, ready func()) error {
	if err := registerPlugins(); err != nil {
		return err
	}
	for _, addr := range d.listen {
		if err := checkFree(addr); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(apiConfig(d.kube))
	if err != nil {
		return err
	}
	d.cluster, err = newCluster(ctx, d.kube, d.domain)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()

	custom := newCustomConfig(client)
	upstreamsChanged := make(chan struct{}, 1)
	synced := make(chan struct{})
	workers.Go(func() { d.cluster.run(ctx) })
	workers.Go(func() { d.hosts.follow(ctx, client) })
	workers.Go(func() { custom.follow(ctx) })
	workers.Go(func() { d.followResolvConf(ctx, upstreamsChanged) })
	workers.Go(func() { d.awaitSync(ctx, synced) })
	report := newReporter(ctx, d.log, client)
	defer report.stop()

	s := &server{dns: d, report: report}
	s.upstreams = d.readUpstreams(Upstreams{})
	if err := s.apply(); err != nil {
		return err
	}
	defer s.stop()
	defer d.serving.Store(false)

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
			synced = nil
			d.serving.Store(true)
			ready()
		case <-upstreamsChanged:
			s.setUpstreams(d.readUpstreams(s.upstreams))
		case <-custom.changed:
			s.setCustom(custom.get())
		}
	}
}

// awaitSync closes synced when the cluster's services are known.
func (d *DNS) awaitSync(ctx context.Context, synced chan<- struct{}) {
	poll := time.NewTicker(syncPoll)
	defer poll.Stop()
	began, told := time.Now(), false
	for !d.cluster.synced() {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		if !told && time.Since(began) > syncPatience {
			told = true
			d.log.Warn("DNS answers only names outside the cluster: the API server has not yet given it services, endpointslices and namespaces; check that the API server is reachable and that system:kombi:dns may list them")
		}
	}
	close(synced)
}

// readUpstreams reads the node's resolvers and tells what changed since before.
func (d *DNS) readUpstreams(before Upstreams) Upstreams {
	own := slices.Clone(d.services)
	for _, a := range d.listen {
		own = append(own, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
	}
	now := FindUpstreams(d.resolvConf, own, readFile)
	switch {
	case now.Why != "" && now.Why != before.Why:
		d.log.Warn(now.Why)
	case !slices.Equal(now.Servers, before.Servers):
		d.log.Info("names outside the cluster are asked of the node's resolvers", "resolvers", now.Servers, "from", now.From)
	}
	return now
}
