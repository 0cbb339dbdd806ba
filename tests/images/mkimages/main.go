// Command mkimages writes the archives of the test images to a folder and
// prints their paths: go run ./tests/images/mkimages DIR
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkimages DIR")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	archives, err := testimages.Ensure(ctx, os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimages:", err)
		os.Exit(1)
	}
	for _, a := range archives {
		fmt.Println(a)
	}
}
