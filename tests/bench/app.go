package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/miekg/dns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

// measureAnswer measures from the start on nothing until an application that
// was created as soon as the API allowed it answers by its Service's DNS name.
func measureAnswer(ctx context.Context, s system, o options, r *readings) error {
	began := time.Now()
	if err := s.start(ctx); err != nil {
		return err
	}
	images := make(chan error, 1)
	go func() { images <- s.addImages(ctx, o.archive("web")) }()
	c, err := client(ctx, s)
	if err != nil {
		return err
	}
	// Pods need the default service account, which a controller makes.
	err = await(ctx, s, "default service account", time.Minute, func() error {
		_, err := c.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := createWeb(ctx, c); err != nil {
		return err
	}
	if err := <-images; err != nil {
		return err
	}
	if err := awaitRunning(ctx, s, c, "web", 1); err != nil {
		return err
	}
	if err := await(ctx, s, "this process among the node's", time.Minute, s.joinNode); err != nil {
		return err
	}
	if err := await(ctx, s, "answer of the application", time.Minute, func() error { return ask(s) }); err != nil {
		return err
	}
	r.answer = append(r.answer, time.Since(began))
	return removeAndStop(ctx, s, c, "web")
}

// ask resolves the Service's name and sends it a request.
func ask(s system) error {
	query := new(dns.Msg)
	query.SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
	answer, _, err := (&dns.Client{Timeout: 500 * time.Millisecond}).Exchange(query, s.dns().String())
	if err != nil {
		return err
	}
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			web := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			response, err := web.Get("http://" + net.JoinHostPort(a.A.String(), "80") + "/version")
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return errors.New(response.Status)
			}
			return nil
		}
	}
	return fmt.Errorf("DNS says %s", dns.RcodeToString[answer.Rcode])
}

func createWeb(ctx context.Context, c kubernetes.Interface) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if _, err := c.CoreV1().Services(corev1.NamespaceDefault).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	return createDeployment(ctx, c, "web", 1, corev1.Container{
		Name: "web", Image: testimages.WebV1, Env: []corev1.EnvVar{{Name: "DRAIN", Value: "0s"}},
	})
}

func createDeployment(ctx context.Context, c kubernetes.Interface, name string, replicas int32, container corev1.Container) error {
	labels, grace := map[string]string{"app": name}, int64(0)
	container.ImagePullPolicy = corev1.PullNever // it is imported, perhaps later
	_, err := c.AppsV1().Deployments(corev1.NamespaceDefault).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{container}},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

func awaitRunning(ctx context.Context, s system, c kubernetes.Interface, app string, want int) error {
	return await(ctx, s, fmt.Sprintf("%d pods of %s", want, app), 3*time.Minute, func() error {
		pods, err := c.CoreV1().Pods(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		running, why := 0, ""
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
			for _, status := range p.Status.ContainerStatuses {
				if w := status.State.Waiting; w != nil {
					why = w.Reason + ": " + w.Message
				}
			}
		}
		if running < want {
			return fmt.Errorf("%d run; %s", running, why)
		}
		return nil
	})
}

// measurePods starts idle pods and divides what they added by their number.
func measurePods(ctx context.Context, s system, c kubernetes.Interface, o options, r *readings) error {
	before := total(s).anon
	err := createDeployment(ctx, c, "idle", int32(o.Pods), corev1.Container{
		Name: "idle", Image: testimages.Busybox, Command: []string{"sleep", "infinity"},
	})
	if err != nil {
		return err
	}
	if err := awaitRunning(ctx, s, c, "idle", o.Pods); err != nil {
		return err
	}
	if err := pause(ctx, o.Settle); err != nil {
		return err
	}
	r.podMemory = float64(total(s).anon-before) / float64(o.Pods)
	return removePods(ctx, s, c, "idle")
}

func removeAndStop(ctx context.Context, s system, c kubernetes.Interface, app string) error {
	if err := removePods(ctx, s, c, app); err != nil {
		return err
	}
	return s.stop(ctx)
}

// removePods removes an application and waits until nothing of it runs.
func removePods(ctx context.Context, s system, c kubernetes.Interface, app string) error {
	background := metav1.DeletePropagationBackground
	if err := c.AppsV1().Deployments(corev1.NamespaceDefault).Delete(ctx, app, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	return await(ctx, s, "end of the pods of "+app, 2*time.Minute, func() error {
		pods, err := c.CoreV1().Pods(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		if n := len(pods.Items); n > 0 {
			return fmt.Errorf("%d pods are there", n)
		}
		if n := len(shims()); n > 0 {
			return fmt.Errorf("%d shims are there", n)
		}
		return nil
	})
}
