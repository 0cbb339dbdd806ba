package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	writerCount      = 8
	objectsPerWriter = 12
)

// absent is the version of an object that is not there.
const absent = 0

// object is what a client knows of one ConfigMap or Secret.
type object struct {
	name   string
	secret bool
	// acknowledged is the last version that the server has confirmed.
	acknowledged int
	// pending are later versions that were sent and not confirmed: each of them
	// may be there.
	pending []int
}

// allows says whether the server may have this version.
func (o *object) allows(version int) bool {
	return version == o.acknowledged || slices.Contains(o.pending, version)
}

// value is what an object holds at a version: some 1.5 KB that no other version has.
func value(name string, version int) string {
	return strings.Repeat(fmt.Sprintf("%s version %d. ", name, version), 60)
}

// writer is one client that changes its own objects, one after the other, and
// keeps a journal of what was acknowledged.
type writer struct {
	client  kubernetes.Interface
	ns      string
	objects []*object
	version int
	log     *writers
}

// writers are all clients.
type writers struct {
	all []*writer

	// gate is held for reading during each write: whoever holds it for writing
	// knows that nothing is under way.
	gate sync.RWMutex
	held chan struct{} // closed once the gate is held for writing; nil when nobody wants it

	acknowledged, failed atomic.Int64

	mu       sync.Mutex
	problems []string
	errors   map[string]int // what clients were told, and how often
}

// startWriters starts the write load; it ends with the test.
func startWriters(t *testing.T, config *rest.Config, ns string) *writers {
	t.Helper()
	w := &writers{errors: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); w.release(); wg.Wait() })
	for i := range writerCount {
		own := rest.CopyConfig(config)
		own.QPS, own.Timeout = -1, 10*time.Second
		// A connection of its own, as a client of its own has.
		own.UserAgent = fmt.Sprintf("writer-%d", i)
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			t.Fatal(err)
		}
		one := &writer{client: client, ns: ns, log: w}
		for j := range objectsPerWriter {
			one.objects = append(one.objects, &object{name: fmt.Sprintf("w%d-%d", i, j), secret: j%2 == 1})
		}
		w.all = append(w.all, one)
		wg.Go(func() { one.run(ctx) })
	}
	return w
}

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.log.gate.RLock()
		err := w.write(ctx, w.objects[rand.IntN(len(w.objects))])
		w.log.gate.RUnlock()
		if err == nil {
			w.log.acknowledged.Add(1)
			continue
		}
		w.log.failed.Add(1)
		select { // the server is down: not too eager
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// write creates, changes or deletes one object.
func (w *writer) write(ctx context.Context, o *object) error {
	w.version++
	next := w.version
	create := o.acknowledged == absent
	var err error
	switch {
	case create:
		err = w.create(ctx, o, next)
	case rand.IntN(8) == 0:
		next = absent
		err = w.remove(ctx, o)
	default:
		err = w.update(ctx, o, next)
	}
	certain := len(o.pending) == 0
	switch {
	case err == nil:
		o.acknowledged, o.pending = next, nil
	case apierrors.IsAlreadyExists(err) && create && !certain:
		// An earlier create did arrive: which version it was is not known.
		o.acknowledged = o.pending[0]
	case apierrors.IsNotFound(err) && !create && !certain:
		// An earlier delete did arrive.
		o.acknowledged, o.pending = absent, append(o.pending, absent)
	case apierrors.IsNotFound(err) && !create, apierrors.IsAlreadyExists(err) && create:
		w.log.problem("%s: version %d was acknowledged, and now: %v", o.name, o.acknowledged, err)
		o.acknowledged = absent
		if create {
			o.acknowledged = next
		}
	default:
		o.pending = append(o.pending, next)
		w.log.told(err)
	}
	return err
}

func (w *writer) create(ctx context.Context, o *object, version int) error {
	var err error
	if meta := (metav1.ObjectMeta{Name: o.name, Namespace: w.ns}); o.secret {
		_, err = w.client.CoreV1().Secrets(w.ns).Create(ctx, &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"v": value(o.name, version)}}, metav1.CreateOptions{})
	} else {
		_, err = w.client.CoreV1().ConfigMaps(w.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"v": value(o.name, version)}}, metav1.CreateOptions{})
	}
	return err
}

func (w *writer) update(ctx context.Context, o *object, version int) error {
	var err error
	if meta := (metav1.ObjectMeta{Name: o.name, Namespace: w.ns}); o.secret {
		_, err = w.client.CoreV1().Secrets(w.ns).Update(ctx, &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"v": value(o.name, version)}}, metav1.UpdateOptions{})
	} else {
		_, err = w.client.CoreV1().ConfigMaps(w.ns).Update(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"v": value(o.name, version)}}, metav1.UpdateOptions{})
	}
	return err
}

func (w *writer) remove(ctx context.Context, o *object) error {
	if o.secret {
		return w.client.CoreV1().Secrets(w.ns).Delete(ctx, o.name, metav1.DeleteOptions{})
	}
	return w.client.CoreV1().ConfigMaps(w.ns).Delete(ctx, o.name, metav1.DeleteOptions{})
}

func (w *writers) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *writers) told(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors[err.Error()]++
}

// takeErrors returns what clients were told, and forgets it.
func (w *writers) takeErrors() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.errors
	w.errors = map[string]int{}
	return told
}

// waitAcknowledged waits for n more acknowledged writes.
func (w *writers) waitAcknowledged(n int64) error {
	target := w.acknowledged.Load() + n
	for deadline := time.Now().Add(60 * time.Second); w.acknowledged.Load() < target; {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %d of %d writes were acknowledged within a minute; clients are told: %v", n-(target-w.acknowledged.Load()), n, w.takeErrors())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// hold keeps clients from starting another write, and returns without waiting
// for those that are under way. The channel is closed when there are none.
func (w *writers) hold() <-chan struct{} {
	w.held = make(chan struct{})
	go func(held chan struct{}) {
		w.gate.Lock()
		close(held)
	}(w.held)
	return w.held
}

// release lets held clients go on.
func (w *writers) release() {
	if w.held != nil {
		<-w.held
		w.held = nil
		w.gate.Unlock()
	}
}

// verify compares what the server has with every journal, while the clients are
// held. ended is true when the process that got their writes is gone, so that
// none of them can still arrive.
func (w *writers) verify(client kubernetes.Interface, ended bool) (objects int, problems []string) {
	w.mu.Lock()
	problems, w.problems = w.problems, nil
	w.mu.Unlock()
	ns := w.all[0].ns
	stored := map[string]string{}
	configMaps, err := client.CoreV1().ConfigMaps(ns).List(context.Background(), metav1.ListOptions{})
	secrets, err2 := client.CoreV1().Secrets(ns).List(context.Background(), metav1.ListOptions{})
	if err := errors.Join(err, err2); err != nil {
		return 0, append(problems, err.Error())
	}
	for _, c := range configMaps.Items {
		stored[c.Name] = c.Data["v"]
	}
	for _, s := range secrets.Items {
		stored[s.Name] = string(s.Data["v"])
	}
	for _, one := range w.all {
		for _, o := range one.objects {
			text, found := stored[o.name]
			version := absent
			if found {
				objects++
				if _, err := fmt.Sscanf(text, o.name+" version %d.", &version); err != nil || text != value(o.name, version) {
					problems = append(problems, fmt.Sprintf("%s holds %d bytes that were never written: %.40q", o.name, len(text), text))
					continue
				}
			}
			if !o.allows(version) {
				problems = append(problems, fmt.Sprintf("%s: version %d was acknowledged (%v not), the server has version %d", o.name, o.acknowledged, o.pending, version))
			}
			// What was seen has to stay.
			if ended {
				o.acknowledged, o.pending = version, nil
			}
		}
	}
	return objects, problems
}
