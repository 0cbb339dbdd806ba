package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// FieldManager is the name under which the API server records the fields that
// Kombi's manifests own.
const FieldManager = "kombi-deploy"

// onlyMetadata asks for the metadata of an object instead of the whole of it:
// nothing more is needed of an answer, and a big ConfigMap or CRD would be
// decoded for nothing.
const onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// client is the little that deploying needs of the API server: no discovery
// cache, no typed clients, no watch.
type client struct {
	rest rest.Interface
}

// newClient returns a client without a rate limit of its own: the API server's
// priority and fairness decides, and a start must not wait for a token bucket.
func newClient(kube *rest.Config) (*client, error) {
	if kube == nil {
		return nil, fmt.Errorf("no API server configuration was given")
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config := rest.CopyConfig(kube)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.GroupVersion = &schema.GroupVersion{}
	r, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &client{rest: r}, nil
}

// target addresses one object, or, without a name, a collection.
type target struct {
	gv          schema.GroupVersion
	plural      string
	namespace   string // empty for a cluster-scoped object
	name        string
	subresource string
}

func groupVersionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func (c *client) request(verb string, t target) *rest.Request {
	// No retries here: while the API server starts it asks to wait whole seconds,
	// which is longer than it takes. Those who call know how often to try.
	r := c.rest.Verb(verb).MaxRetries(0).AbsPath(groupVersionPath(t.gv)).Resource(t.plural)
	if t.namespace != "" {
		r = r.Namespace(t.namespace)
	}
	if t.name != "" {
		r = r.Name(t.name)
	}
	if t.subresource != "" {
		r = r.SubResource(t.subresource)
	}
	return r
}

// into runs r and decodes the answer into out, unless out is nil.
func into(ctx context.Context, r *rest.Request, out any) error {
	result := r.Do(ctx)
	// Only Error decodes the server's own account of what is wrong.
	if err := result.Error(); err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

// apply is a server-side apply; it returns the object's metadata.
func (c *client) apply(ctx context.Context, t target, body []byte, force bool) (*metav1.PartialObjectMetadata, error) {
	out := &metav1.PartialObjectMetadata{}
	r := c.request(http.MethodPatch, t).
		SetHeader("Content-Type", string(types.ApplyPatchType)).
		SetHeader("Accept", onlyMetadata).
		Param("fieldManager", FieldManager).
		Param("force", strconv.FormatBool(force)).
		Body(body)
	return out, into(ctx, r, out)
}

// metadata gets an object's metadata.
func (c *client) metadata(ctx context.Context, t target) (*metav1.PartialObjectMetadata, error) {
	out := &metav1.PartialObjectMetadata{}
	return out, into(ctx, c.request(http.MethodGet, t).SetHeader("Accept", onlyMetadata), out)
}

func (c *client) get(ctx context.Context, t target, out any) error {
	return into(ctx, c.request(http.MethodGet, t), out)
}

// list gets a collection, limited to a label selector unless it is empty.
func (c *client) list(ctx context.Context, t target, selector string, out any) error {
	r := c.request(http.MethodGet, t)
	if selector != "" {
		r = r.Param("labelSelector", selector)
	}
	return into(ctx, r, out)
}

func (c *client) create(ctx context.Context, t target, in, out any) error {
	return c.send(ctx, http.MethodPost, t, in, out)
}

func (c *client) update(ctx context.Context, t target, in, out any) error {
	return c.send(ctx, http.MethodPut, t, in, out)
}

func (c *client) send(ctx context.Context, verb string, t target, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return into(ctx, c.request(verb, t).
		SetHeader("Content-Type", runtime.ContentTypeJSON).
		Param("fieldManager", FieldManager).Body(body), out)
}

// delete deletes the object, but only the one with this uid unless uid is
// empty. What the object owns is deleted in the background.
func (c *client) delete(ctx context.Context, t target, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		PropagationPolicy: &background,
	}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	body, err := json.Marshal(options)
	if err != nil {
		return err
	}
	return into(ctx, c.request(http.MethodDelete, t).
		SetHeader("Content-Type", runtime.ContentTypeJSON).
		SetHeader("Accept", onlyMetadata).Body(body), nil)
}
