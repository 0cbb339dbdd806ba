// Command web is the shop that the end-to-end tests run: a web server that
// counts orders in a redis database, shows its configuration, burns CPU on
// request, and leaves without losing a request. The same program is the init
// container and the sidecar.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetOutput(os.Stdout)
	if err := run(os.Args[1:]); err != nil {
		log.Fatalf("web: %v", err)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	command := "serve"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "serve":
		return serve(ctx, configFromEnv())
	case "init":
		// The init container leaves a note for the web server.
		if len(args) != 1 {
			return fmt.Errorf("usage: web init FILE")
		}
		return os.WriteFile(args[0], []byte("prepared by "+os.Getenv("HOSTNAME")+"\n"), 0o644)
	case "sidecar":
		// The sidecar says that it lives, in a file and on its output.
		if len(args) != 1 {
			return fmt.Errorf("usage: web sidecar FILE")
		}
		return beat(ctx, args[0])
	}
	return fmt.Errorf("unknown command %q", command)
}

func beat(ctx context.Context, file string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		if err := os.WriteFile(file, fmt.Appendf(nil, "beat %d\n", n), 0o644); err != nil {
			return err
		}
		log.Printf("beat %d", n)
		select {
		case <-ctx.Done():
			log.Print("sidecar ends")
			return nil
		case <-tick.C:
		}
	}
}
