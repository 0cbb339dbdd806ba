package controlplane

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/munnerz/goautoneg"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	openAPIv2 = "/openapi/v2"
	openAPIv3 = "/openapi/v3"

	// documentsDelay is how long after its start the server builds the OpenAPI
	// documents that nobody asked for before.
	documentsDelay = 15 * time.Second
)

// documents serves the OpenAPI documents of Kubernetes' own types, as upstream
// does, but keeps them compressed: as structures they are half of the live
// memory of an idle server. Each is built when the first client asks for it, or
// some time after the start.
type documents struct {
	log    *slog.Logger
	config *genericapiserver.Config
	v2     func() (*document, error)
	v3     map[string]func() (*document, error) // by group and version, as "apis/apps/v1"
	early  *document                            // the list of version 3 without hashes
	index  atomic.Pointer[document]             // the list with them, once all are built
}

// document is one of them, as JSON.
type document struct {
	plain    []byte // of a small one that is asked for often, else nil
	gzipped  []byte
	etag     string // without quotes
	modified time.Time
}

// serveDocuments adds the handlers to a server that installs none of its own
// and that has all its API groups.
func serveDocuments(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config, log *slog.Logger) (*documents, error) {
	container := server.Handler.GoRestfulContainer
	d := &documents{log: log, config: config, v3: make(map[string]func() (*document, error))}
	d.v2 = sync.OnceValues(func() (*document, error) {
		from := mux.NewPathRecorderMux("openapi")
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(container, from)
		return take(from, openAPIv2)
	})
	for _, service := range container.RegisteredWebServices() {
		path := strings.TrimPrefix(service.RootPath(), "/")
		d.v3[path] = sync.OnceValues(func() (*document, error) {
			only := restful.NewContainer()
			only.Add(service)
			from := mux.NewPathRecorderMux("openapi")
			routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(only, from)
			return take(from, openAPIv3+"/"+path)
		})
	}
	var err error
	if d.early, err = d.list(func(string) (string, error) { return "", nil }); err != nil {
		return nil, err
	}
	paths := server.Handler.NonGoRestfulMux
	paths.HandleFunc(openAPIv2, d.serveV2)
	paths.HandleFunc(openAPIv3, d.serveIndex)
	paths.HandlePrefix(openAPIv3+"/", http.HandlerFunc(d.serveV3))
	return d, nil
}

// list is the list of version 3; query gives what comes after a document's path.
func (d *documents) list(query func(path string) (string, error)) (*document, error) {
	all := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion)}
	for path := range d.v3 {
		suffix, err := query(path)
		if err != nil {
			return nil, err
		}
		all.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: openAPIv3 + "/" + path + suffix}
	}
	content, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	list, err := pack(content, fmt.Sprintf("%X", sha512.Sum512(content)))
	if err != nil {
		return nil, err
	}
	list.plain = content
	return list, nil
}

// settle builds what nobody asked for yet, and gives back the memory.
func (d *documents) settle() {
	index, err := d.list(func(path string) (string, error) {
		document, err := d.v3[path]()
		if err != nil {
			return "", err
		}
		return "?hash=" + document.etag, nil
	})
	if err == nil {
		d.index.Store(index)
		_, err = d.v2()
	}
	if err != nil {
		d.log.Error("the OpenAPI documents cannot be built", "error", err)
	}
	// The definitions of all types are shared by the servers of the chain, which
	// are built by now.
	d.config.OpenAPIConfig.Definitions = nil
	d.config.OpenAPIV3Config.Definitions = nil
	debug.FreeOSMemory()
}

// take asks a handler for a document.
func take(from http.Handler, path string) (*document, error) {
	request, err := http.NewRequest(http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	answer := responsewriter.NewInMemoryResponseWriter()
	from.ServeHTTP(answer, request)
	if answer.RespCode() != http.StatusOK {
		return nil, fmt.Errorf("%s was answered with status %d", path, answer.RespCode())
	}
	etag, err := strconv.Unquote(answer.Header().Get("Etag"))
	if err != nil {
		return nil, fmt.Errorf("%s has the ETag %s: %w", path, answer.Header().Get("Etag"), err)
	}
	return pack(answer.Data(), etag)
}

func pack(content []byte, etag string) (*document, error) {
	var packed bytes.Buffer
	packer, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := packer.Write(content); err != nil {
		return nil, err
	}
	if err := packer.Close(); err != nil {
		return nil, err
	}
	return &document{gzipped: bytes.Clone(packed.Bytes()), etag: etag, modified: time.Now()}, nil
}

// fail answers a request for a document that cannot be built.
func fail(w http.ResponseWriter, err error) {
	http.Error(w, "the OpenAPI document cannot be built: "+err.Error(), http.StatusInternalServerError)
}

func (d *documents) serveV2(w http.ResponseWriter, r *http.Request) {
	doc, err := d.v2()
	if err != nil {
		fail(w, err)
		return
	}
	doc.serve(w, r, "v2", handler.ToProtoBinary)
}

// serveIndex lists the documents of version 3. Before they are built it names
// them without their hashes, which clients only use for caching: the aggregator
// asks each second.
func (d *documents) serveIndex(w http.ResponseWriter, r *http.Request) {
	list := d.index.Load()
	if list == nil {
		list = d.early
	}
	list.serve(w, r, "", nil)
}

func (d *documents) serveV3(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, openAPIv3+"/")
	build, found := d.v3[path]
	if !found {
		http.NotFound(w, r)
		return
	}
	doc, err := build()
	if err != nil {
		fail(w, err)
		return
	}
	if hash := r.URL.Query().Get("hash"); hash == doc.etag {
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	} else if hash != "" {
		http.Redirect(w, r, openAPIv3+"/"+path+"?hash="+doc.etag, http.StatusMovedPermanently)
		return
	}
	doc.serve(w, r, "v3", handler3.ToV3ProtoBinary)
}

// serve answers with the document as JSON or, where there is a function for it
// and the client wants that more, in the binary form of an OpenAPI version.
func (d *document) serve(w http.ResponseWriter, r *http.Request, version string, binary func([]byte) ([]byte, error)) {
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	contentType := ""
	wantsBinary := false
	subtype := "com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		if clause.SubType == "json" || clause.SubType == "*" {
			contentType = "application/json"
			break
		}
		// The second name is the one that clients before Kubernetes 1.24 use.
		if binary != nil && (clause.SubType == subtype || clause.SubType == strings.Replace(subtype, ".v1.0", "@v1.0", 1)) {
			contentType, wantsBinary = "application/"+subtype, true
			break
		}
	}
	if contentType == "" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	body := d.gzipped
	packed := !wantsBinary && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	if !packed {
		var err error
		if body, err = d.unpack(); err == nil && wantsBinary {
			body, err = binary(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Etag", strconv.Quote(d.etag))
	if packed {
		w.Header().Set("Content-Encoding", "gzip")
	}
	http.ServeContent(w, r, "", d.modified, bytes.NewReader(body))
}

func (d *document) unpack() ([]byte, error) {
	if d.plain != nil {
		return d.plain, nil
	}
	unpacker, err := gzip.NewReader(bytes.NewReader(d.gzipped))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unpacker)
}
