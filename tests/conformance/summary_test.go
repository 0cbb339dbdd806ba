package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const junitReport = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7" disabled="3" errors="0" failures="3" time="90">
 <testsuite name="Kubernetes e2e suite" package="/tmp" tests="7">
  <properties><property name="SuiteSucceeded" value="false"></property></properties>
  <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="1"></testcase>
  <testcase name="[It] [sig-network] Services serve" classname="Kubernetes e2e suite" status="passed" time="3"></testcase>
  <testcase name="[It] [sig-network] Services need two nodes" status="skipped" time="0"><skipped message="skipped - Requires at least 2 nodes&#xA;(not 1)"></skipped></testcase>
  <testcase name="[It] [sig-network] Services with SCTP [Feature:SCTPConnectivity]" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-network] Services slow" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-network] Services too late" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-apps] Job runs" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] [sig-network] DNS answers" status="failed" time="60"><failure message="" type="failed">[FAILED] no answer
from 10.43.0.10
In [It] at: /src/dns.go:12</failure><system-err>long</system-err></testcase>
  <testcase name="[It] [sig-network] DNS panics" status="panicked" time="1"><error message="index out of range" type="panicked"></error></testcase>
  <testcase name="[SynchronizedAfterSuite]" status="timedout" time="1"><failure message="" type="timedout"></failure></testcase>
 </testsuite>
</testsuites>`

func TestSummary(t *testing.T) {
	list, err := readSkips()
	if err != nil {
		t.Fatal(err)
	}
	o := options{Focus: `\[sig-network\]`, Skip: "slow", Out: t.TempDir()}
	if err := os.WriteFile(filepath.Join(o.Out, "junit_01.xml"), []byte(junitReport), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := report(o, list, 90*time.Second); err != nil {
		t.Fatal(err)
	}

	data, err := os.ReadFile(filepath.Join(o.Out, summaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"passed": 1.0, "failed": 3.0, "skipped": 4.0, "seconds": 90.0,
		"failures": []any{"[sig-network] DNS answers", "[sig-network] DNS panics", "[SynchronizedAfterSuite]"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s holds %s", summaryFile, data)
	}
	for file, want := range map[string]string{
		failuresFile: "[sig-network] DNS answers: no answer from 10.43.0.10 In [It] at: /src/dns.go:12\n" +
			"[sig-network] DNS panics: index out of range\n" +
			"[SynchronizedAfterSuite]: timedout\n",
		skippedFile: "[sig-network] Services need two nodes: Requires at least 2 nodes (not 1)\n" +
			"[sig-network] Services slow: SKIP\n" +
			"[sig-network] Services too late: the run ended before\n" +
			"[sig-network] Services with SCTP [Feature:SCTPConnectivity]: " + list.Skips[0].Reason + "\n",
	} {
		got, err := os.ReadFile(filepath.Join(o.Out, file))
		if err != nil || string(got) != want {
			t.Errorf("%s, %v:\n%swant\n%s", file, err, got, want)
		}
	}
}

func TestReportOfNothing(t *testing.T) {
	o := options{Out: t.TempDir()}
	if _, err := report(o, new(skipList), 0); err == nil || !strings.Contains(err.Error(), "no report") {
		t.Errorf("error %v", err)
	}
	s, err := summarize(nil, o, new(skipList))
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := json.Marshal(s); string(data) != `{"passed":0,"failed":0,"skipped":0,"seconds":0,"failures":[]}` {
		t.Errorf("summary is %s", data)
	}
	if _, err := readJUnit(strings.NewReader("<testsuites>")); err == nil {
		t.Error("half a report is read")
	}
}
