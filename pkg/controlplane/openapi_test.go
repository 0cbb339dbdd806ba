package controlplane

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// source serves one document, as upstream's handlers do.
func source(content string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/there" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Etag", `"ABC"`)
		_, _ = io.WriteString(w, content)
	})
}

func TestDocumentIsServedAsItWasTaken(t *testing.T) {
	const content = `{"openapi":"3.0.0"}`
	doc, err := take(source(content), "/there")
	if err != nil || doc.etag != "ABC" {
		t.Fatalf("%+v %v", doc, err)
	}
	binary := func(json []byte) ([]byte, error) { return append([]byte("binary "), json...), nil }
	for _, c := range []struct {
		name, accept, encoding, match string
		status                        int
		contentType, body             string
	}{
		{name: "anything", status: 200, contentType: "application/json", body: content},
		{name: "JSON", accept: "application/json", status: 200, contentType: "application/json", body: content},
		{name: "packed", accept: "application/json", encoding: "gzip", status: 200, contentType: "application/json", body: content},
		{name: "binary", accept: "application/com.github.proto-openapi.spec.v3.v1.0+protobuf, application/json;q=0.5", encoding: "gzip",
			status: 200, contentType: "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", body: "binary " + content},
		{name: "binary of old clients", accept: "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
			status: 200, contentType: "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", body: "binary " + content},
		{name: "binary of another version, or JSON", accept: "application/com.github.proto-openapi.spec.v2@v1.0+protobuf, */*",
			status: 200, contentType: "application/json", body: content},
		{name: "nothing that there is", accept: "text/html", status: 406},
		{name: "known already", match: `"ABC"`, status: 304},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/there", nil)
			for name, value := range map[string]string{"Accept": c.accept, "Accept-Encoding": c.encoding, "If-None-Match": c.match} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			w := httptest.NewRecorder()
			doc.serve(w, r, "v3", binary)
			body := w.Body.Bytes()
			if w.Header().Get("Content-Encoding") == "gzip" {
				unpacker, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if body, err = io.ReadAll(unpacker); err != nil {
					t.Fatal(err)
				}
			} else if c.encoding != "" && c.contentType == "application/json" {
				t.Error("it is not packed")
			}
			if w.Code != c.status || string(body) != c.body {
				t.Errorf("%d %q", w.Code, body)
			}
			if c.contentType != "" && w.Header().Get("Content-Type") != c.contentType {
				t.Errorf("it has the type %s", w.Header().Get("Content-Type"))
			}
		})
	}
}

func TestDocumentThatCannotBeHad(t *testing.T) {
	if _, err := take(source("x"), "/elsewhere"); err == nil {
		t.Error("a missing document was taken")
	}
	none := func() (*document, error) { return nil, errors.New("no types") }
	d := &documents{v2: none, v3: map[string]func() (*document, error){"api/v1": none}, early: &document{plain: []byte(`{"paths":{}}`)}}
	for _, c := range []struct {
		path  string
		serve http.HandlerFunc
		want  int
	}{
		{openAPIv2, d.serveV2, 500},
		{openAPIv3 + "/api/v1", d.serveV3, 500},
		{openAPIv3, d.serveIndex, 200},
	} {
		w := httptest.NewRecorder()
		c.serve(w, httptest.NewRequest(http.MethodGet, c.path, nil))
		if w.Code != c.want {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
	}
}

func TestDocumentsByHash(t *testing.T) {
	doc, err := take(source("{}"), "/there")
	if err != nil {
		t.Fatal(err)
	}
	doc.modified = time.Unix(0, 0)
	d := &documents{v3: map[string]func() (*document, error){"apis/apps/v1": func() (*document, error) { return doc, nil }}}
	for url, want := range map[string]int{
		"/openapi/v3/apis/apps/v1":          200,
		"/openapi/v3/apis/apps/v1?hash=ABC": 200,
		"/openapi/v3/apis/apps/v1?hash=OLD": 301,
		"/openapi/v3/apis/none/v1":          404,
	} {
		w := httptest.NewRecorder()
		d.serveV3(w, httptest.NewRequest(http.MethodGet, url, nil))
		if w.Code != want {
			t.Errorf("%s: %d", url, w.Code)
		}
		if immutable := w.Header().Get("Cache-Control") != ""; immutable != (url == "/openapi/v3/apis/apps/v1?hash=ABC") {
			t.Errorf("%s: may be kept for ever: %v", url, immutable)
		}
	}
}
