package controlplane

import (
	"context"

	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// SchedulerOptions configure the scheduler.
type SchedulerOptions struct {
	// Kubeconfig is the file with the scheduler's identity.
	Kubeconfig string
	// Args are further name=value settings in upstream's terms.
	Args []string
}

// Scheduler is the component "scheduler".
type Scheduler struct {
	opts SchedulerOptions
}

// NewScheduler returns the component.
func NewScheduler(opts SchedulerOptions) *Scheduler { return &Scheduler{opts: opts} }

// Name implements component.Component.
func (s *Scheduler) Name() string { return "scheduler" }

// Needs implements component.Component.
func (s *Scheduler) Needs() []string { return []string{"apiserver"} }

// Run implements component.Component.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	opts := options.NewOptions()
	// Its metrics are part of the API server's /metrics: no port.
	opts.SecureServing.BindPort = 0
	if err := setArgs(*opts.Flags, "kube-scheduler-arg", s.opts.Args); err != nil {
		return err
	}
	// Setup starts from the default configuration and applies over it what was
	// set as a flag, so these two go by that way. There is only one scheduler
	// and nobody to be elected by.
	if err := opts.Flags.FlagSet("deprecated").Set("kubeconfig", s.opts.Kubeconfig); err != nil {
		return err
	}
	if err := opts.Flags.FlagSet("leader election").Set("leader-elect", "false"); err != nil {
		return err
	}
	completed, scheduler, err := schedulerapp.Setup(ctx, opts)
	if err != nil {
		return err
	}
	ready()
	err = schedulerapp.Run(ctx, completed, scheduler)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
