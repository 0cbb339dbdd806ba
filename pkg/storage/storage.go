// Package storage provisions volumes that are directories on the node where
// their pod runs. It owns the folder that holds them, and the PersistentVolumes
// and CSIStorageCapacities that it makes.
//
// Every node runs the component for itself: the scheduler picks the node of a
// claim, and only that node acts, so that nothing has to be elected. The volumes
// are of the built-in type "local", which the kubelet mounts by itself; there are
// no helper pods and there is no CSI driver.
//
// # Why not sig-storage-lib-external-provisioner
//
// Its constructor adds types to client-go's global scheme, a map without a lock,
// while the other components of the process read it, which ends the process; it
// also calls os.Exit on errors of its own and tells of each claim on every node.
//
// # What it does not do
//
// A volume's size is compared with the free space when it is made and is not
// enforced afterwards: a directory has no quota. Volumes are not expanded, cloned
// or snapshotted, and block volumes and shared access modes are refused.
package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// ProvisionerName is the name of the provisioner in the bundled StorageClasses
// and of the CSIDriver object that makes the scheduler look at free space. It has
// no slash because the name of an object cannot have one.
const ProvisionerName = "local.kombi.dev"

// Options are what a [Provisioner] needs.
type Options struct {
	// Log receives one line for each volume that is made or deleted.
	Log *slog.Logger
	// Kube reaches the API server with the rights of manifests/rbac/storage.yaml.
	Kube *rest.Config
	// NodeName is the name of this node's Node object.
	NodeName string
	// Dir is where the volumes are, <data-dir>/storage. It is made when absent.
	Dir string
	// ProvisionerName is the provisioner that claims are served for; by default
	// the constant of that name.
	ProvisionerName string
}

// Provisioner is the component "storage".
type Provisioner struct {
	opts   Options
	client kubernetes.Interface
	dir    *volumeDir

	claims  cache.SharedIndexInformer
	volumes cache.SharedIndexInformer
	classes cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[item]
	report  chan struct{} // asks for the free space to be published anew

	mu   sync.Mutex
	node *nodeIdentity // once known
}

// item is one object to look at.
type item struct {
	claim     bool // otherwise a volume
	namespace string
	name      string
}

// New returns the provisioner.
func New(opts Options) *Provisioner {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.ProvisionerName == "" {
		opts.ProvisionerName = ProvisionerName
	}
	return &Provisioner{opts: opts, dir: &volumeDir{root: opts.Dir}}
}

// Name returns "storage".
func (p *Provisioner) Name() string { return "storage" }

// Needs lists the API server and the rights to use it.
func (p *Provisioner) Needs() []string { return []string{"apiserver", "rbac"} }

// Restartable says that Run may be called again: all state is in the API and on
// disk.
func (p *Provisioner) Restartable() bool { return true }

// Healthy returns nil, or why no volume can be made.
func (p *Provisioner) Healthy() error {
	if _, err := p.dir.free(); err != nil {
		return fmt.Errorf("the volumes' folder %s cannot be used: %w", p.opts.Dir, err)
	}
	return nil
}

// Run serves claims until ctx is done. It is ready once the volumes' folder is
// usable; the watches start behind that.
func (p *Provisioner) Run(ctx context.Context, ready func()) error {
	if err := p.prepare(); err != nil {
		return err
	}
	ready()
	return p.serve(ctx)
}

func (p *Provisioner) prepare() error {
	if p.opts.NodeName == "" || p.opts.Dir == "" {
		return errors.New("the provisioner needs the node's name and a folder")
	}
	if err := p.dir.prepare(); err != nil {
		return err
	}
	if p.client != nil {
		return nil
	}
	if p.opts.Kube == nil {
		return errors.New("volumes cannot be provisioned: no API server configuration was given")
	}
	config := rest.CopyConfig(p.opts.Kube)
	config.QPS = -1 // the API server's priority and fairness decides
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("volumes cannot be provisioned: %w", err)
	}
	p.client = client
	return nil
}

// serve runs until ctx is done and everything that it started has ended.
func (p *Provisioner) serve(ctx context.Context) error {
	p.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[item](500*time.Millisecond, 2*time.Minute))
	p.report = make(chan struct{}, 1)
	p.watch()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer p.queue.ShutDown()
	synced := []cache.InformerSynced{}
	for _, informer := range []cache.SharedIndexInformer{p.claims, p.volumes, p.classes} {
		wg.Go(func() { informer.RunWithContext(ctx) })
		synced = append(synced, informer.HasSynced)
	}
	// What an earlier run was in the middle of deleting when it was killed.
	wg.Go(func() {
		if err := p.dir.emptyTrash(ctx); err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("the remains of deleted volumes cannot be removed", "error", err)
		}
	})
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	wg.Go(func() { p.publishCapacity(ctx) })
	// Two workers, so that the deletion of a large volume holds up nobody.
	for range 2 {
		wg.Go(func() { p.work(ctx) })
	}
	<-ctx.Done()
	return nil
}

func (p *Provisioner) work(ctx context.Context) {
	for {
		next, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		err := p.sync(ctx, next)
		switch {
		case err == nil:
			p.queue.Forget(next)
		case ctx.Err() == nil:
			p.opts.Log.Warn("a volume cannot be handled; trying again", "claim", next.claim, "namespace", next.namespace, "name", next.name, "error", err)
			p.queue.AddRateLimited(next)
		}
		p.queue.Done(next)
	}
}

func (p *Provisioner) sync(ctx context.Context, next item) error {
	if !next.claim {
		if obj, ok, err := p.volumes.GetStore().GetByKey(next.name); err != nil || !ok {
			return err
		} else if volume, ok := obj.(*corev1.PersistentVolume); ok {
			return p.syncVolume(ctx, volume)
		}
		return nil
	}
	obj, ok, err := p.claims.GetStore().GetByKey(next.namespace + "/" + next.name)
	if err != nil || !ok {
		return err
	}
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || !p.concerns(claim) {
		return nil
	}
	return p.syncClaim(ctx, claim)
}

// class returns the StorageClass of that name.
func (p *Provisioner) class(name string) (*storagev1.StorageClass, bool) {
	obj, ok, err := p.classes.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil, false
	}
	class, ok := obj.(*storagev1.StorageClass)
	return class, ok
}
