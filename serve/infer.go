package serve

import (
	"compress/gzip"
	"compress/zlib"
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// This file answers the requests of the Open Inference Protocol, version 2.

// The inputs of a model: one or the other.
const (
	imageInput    = "image"    // BYTES [n] or [n, 1]: encoded images
	featuresInput = "features" // FP32 [n, D] or [D]
)

// detectors is what requests about models need.
type detectors interface {
	Names() []string
	Use(name string) *pool.Used
	Reload(ctx context.Context, name string) error
}

// modelRequests are the requests about models, and about the service.
type modelRequests struct {
	detectors detectors
	draining  *atomic.Bool // the service ends
	version   string       // of the program
	acted     acted
	judged    *judgedImages
}

func (m *modelRequests) live(context.Context, *http.Request) (any, error) {
	return map[string]bool{"live": true}, nil
}

// serves is false while the service ends, so that no more requests are sent to it.
func (m *modelRequests) serves(context.Context, *http.Request) (any, error) {
	if m.draining.Load() {
		return withStatus{http.StatusServiceUnavailable, map[string]bool{"ready": false}}, nil
	}
	return map[string]bool{"ready": true}, nil
}

func (m *modelRequests) server(context.Context, *http.Request) (any, error) {
	return map[string]any{"name": "mlrbfn", "version": m.version, "extensions": []string{"binary_tensor_data", "model_repository"}}, nil
}

// model returns the detector that the path of a request names. It must be released.
func model(open detectors, r *http.Request) (*pool.Used, error) {
	d, err := used(open, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if version := r.PathValue("version"); version != "" && version != d.Version() {
		defer d.Release()
		return nil, refuse(http.StatusNotFound, "detector %q has version %s now, not %q", d.Name, d.Version(), version)
	}
	return d, nil
}

// about answers with what is known of a model.
func (m *modelRequests) about(r *http.Request, what func(*pool.Loaded) any) (any, error) {
	d, err := model(m.detectors, r)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return what(d.Loaded), nil
}

func inputsOf(d *pool.Loaded) []tensor {
	features := tensor{featuresInput, FP32, []int64{-1, int64(d.Dim())}}
	if !d.Images() {
		return []tensor{features}
	}
	return []tensor{{imageInput, inferBytes, []int64{-1}}, features}
}

func outputsOf() []tensor {
	return lists.Map(outputs(nil), func(o inferOutput) tensor { return tensor{o.Name, o.Datatype, []int64{-1}} })
}

func (m *modelRequests) metadata(_ context.Context, r *http.Request) (any, error) {
	return m.about(r, func(d *pool.Loaded) any {
		return map[string]any{"name": d.Name, "versions": []string{d.Version()}, "platform": "mlrbfn", "inputs": inputsOf(d), "outputs": outputsOf(), "classes": d.Classes}
	})
}

func (m *modelRequests) ready(_ context.Context, r *http.Request) (any, error) {
	return m.about(r, func(d *pool.Loaded) any { return map[string]any{"name": d.Name, "ready": true} })
}

// config answers Triton's clients, which ask for it before they send batches.
func (m *modelRequests) config(_ context.Context, r *http.Request) (any, error) {
	type io struct {
		Name     string  `json:"name"`
		DataType string  `json:"data_type"`
		Dims     []int64 `json:"dims"`
		Optional bool    `json:"optional,omitempty"`
	}
	config := func(tensors []tensor, optional bool) []io {
		var all []io
		for _, t := range tensors {
			name := "TYPE_" + t.Datatype
			if t.Datatype == inferBytes {
				name = "TYPE_STRING"
			}
			all = append(all, io{t.Name, name, t.Shape, optional})
		}
		return all
	}
	return m.about(r, func(d *pool.Loaded) any {
		return map[string]any{"name": d.Name, "platform": "mlrbfn", "backend": "mlrbfn", "max_batch_size": 0, "input": config(inputsOf(d), d.Images()), "output": config(outputsOf(), false)}
	})
}

// index lists the detectors, as Triton lists models.
func (m *modelRequests) index(context.Context, *http.Request) (any, error) {
	type model struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		State   string `json:"state"`
	}
	var all []model
	for _, name := range m.detectors.Names() {
		d := m.detectors.Use(name)
		all = append(all, model{name, d.Version(), "READY"})
		d.Release()
	}
	return all, nil
}

// load answers POST /v2/repository/models/NAME/load: the detector's file is read again.
func (m *modelRequests) load(ctx context.Context, r *http.Request) (any, error) {
	d, err := model(m.detectors, r)
	if err != nil {
		return nil, err
	}
	name := d.Name
	d.Release()
	// Nobody who leaves stops it, or a file might be tried over and over.
	if err := m.detectors.Reload(context.WithoutCancel(ctx), name); err != nil {
		return nil, refuse(http.StatusBadRequest, "the file of detector %q cannot be used, and the old one stays; the log says why", name)
	}
	if err := m.acted.did(ctx, "load", name); err != nil {
		return nil, err
	}
	return m.index(ctx, r)
}

// unload answers POST /v2/repository/models/NAME/unload: no detector is taken away while the
// service runs.
func (m *modelRequests) unload(context.Context, *http.Request) (any, error) {
	return nil, refuse(http.StatusBadRequest, "detectors are those of the command line, and none can be unloaded")
}

// statistics answers GET /v2/models/NAME/stats, in Triton's form.
func (m *modelRequests) statistics(_ context.Context, r *http.Request) (any, error) {
	type duration struct {
		Count uint64 `json:"count"`
		NS    uint64 `json:"ns"`
	}
	return m.about(r, func(d *pool.Loaded) any {
		good, bad := m.judged.of(d.Name)
		return map[string]any{"model_stats": []any{map[string]any{
			"name": d.Name, "version": d.Version(), "last_inference": good.last.UnixMilli(), "inference_count": good.n, "execution_count": good.n,
			"inference_stats": map[string]duration{
				"success": {good.n, uint64(good.took)}, "fail": {bad.n, uint64(bad.took)}, "queue": {}, "compute_input": {}, "compute_infer": {good.n, uint64(good.took)}, "compute_output": {},
			},
			"batch_stats": []any{},
		}}}
	})
}

// judgedImages counts images that were judged, by detector.
type judgedImages struct {
	mu  sync.Mutex
	all map[string]*[2]judgedKind
}

type judgedKind struct {
	n    uint64
	took time.Duration
	last time.Time
}

func (j *judgedImages) add(detector string, failed bool, since time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.all == nil {
		j.all = map[string]*[2]judgedKind{}
	}
	if j.all[detector] == nil {
		j.all[detector] = &[2]judgedKind{}
	}
	kind := &j.all[detector][0]
	if failed {
		kind = &j.all[detector][1]
	}
	kind.n++
	kind.last = time.Now()
	kind.took += kind.last.Sub(since)
}

// of returns those of a detector that have a verdict, and those that have none.
func (j *judgedImages) of(detector string) (good, bad judgedKind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if all := j.all[detector]; all != nil {
		return all[0], all[1]
	}
	return good, bad
}

// infer answers POST /v2/models/NAME/infer.
func (q *judgeRequests) infer(ctx context.Context, r *http.Request) (any, error) {
	d, err := model(q.detectors, r)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	source, err := sourceOf(r)
	if err != nil {
		return nil, err
	}
	seats := q.judge.seats(ctx)
	defer seats.leave()
	request, err := q.readInfer(r, seats)
	if err != nil {
		return nil, err
	}
	outcomes, err := q.judgeInput(ctx, d, source, request.Inputs[0], seats)
	if err != nil {
		return nil, err
	}
	all := outputs(outcomes)
	texts := all[len(all)-1].Data.([]string)
	// One image that cannot be read spoils no other if the answer says which it is.
	says := len(request.Outputs) == 0
	for _, wanted := range request.Outputs {
		says = says || wanted.Name == errorOutput
	}
	failed := 0
	for i := range outcomes {
		if outcomes[i].err == nil {
			continue
		}
		var status int
		status, texts[i] = q.explain(ctx, outcomes[i].err)
		if failed++; !says || failed == len(outcomes) || status != http.StatusUnprocessableEntity {
			return nil, refuse(status, "image %d of %d: %s", i, len(outcomes), texts[i])
		}
	}
	response := inferResponse{Model: d.Name, Version: d.Version(), ID: request.ID}
	if response.Outputs, err = request.choose(all); err != nil {
		return nil, err
	}
	body, header, err := response.encode()
	if err == nil && header < len(body) {
		return file{"application/octet-stream", body, map[string]string{headerLength: strconv.Itoa(header)}}, nil
	}
	return file{kind: "application/json", data: body}, err
}

// judgeInput judges the images, or the rows of features, of a request.
func (q *judgeRequests) judgeInput(ctx context.Context, d *pool.Used, source string, in inferTensor, seats *seats) ([]outcome, error) {
	switch {
	case in.Name == imageInput && in.Datatype == inferBytes:
		n := len(in.Elements)
		switch {
		case n == 0:
			return nil, refuse(http.StatusBadRequest, "the request has no image in it")
		case n > q.maxImages:
			return nil, refuse(http.StatusRequestEntityTooLarge, "%d images; a request may have %d", n, q.maxImages)
		}
		if err := seats.take(n, 0); err != nil {
			return nil, err
		}
		pictures := make([]picture, n)
		for i, data := range in.Elements {
			pictures[i].data = data
		}
		return q.judge.all(ctx, d, source, pictures), nil
	case in.Name == featuresInput && in.Datatype == FP32:
		if k := len(in.Shape); k < 1 || k > 2 || in.Shape[k-1] != int64(d.Dim()) || len(in.Values) == 0 {
			return nil, refuse(http.StatusBadRequest, "features of shape %v; the detector reads [-1, %d]", in.Shape, d.Dim())
		}
		if at := slices.IndexFunc(in.Values, func(v float32) bool { return !(math.Abs(float64(v)) <= npy.MostValue) }); at >= 0 {
			return nil, refuse(http.StatusBadRequest, "value %d of the features is %v: it must be finite and at most ±%g", at, in.Values[at], npy.MostValue)
		}
		if err := seats.take(1, 0); err != nil {
			return nil, err
		}
		return q.judge.rows(ctx, d.Loaded, source, in.Values)
	}
	return nil, refuse(http.StatusBadRequest, "input %q of type %s; a detector reads %q of type %s, or %q of type %s", in.Name, in.Datatype, imageInput, inferBytes, featuresInput, FP32)
}

// readInfer reads a request for one input.
func (q *judgeRequests) readInfer(r *http.Request, seats *seats) (*inferRequest, error) {
	if err := q.bound(r); err != nil {
		return nil, err
	}
	body, size := io.Reader(r.Body), r.ContentLength
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		plain, err := inflated(body, encoding)
		if err != nil {
			return nil, err
		}
		body, size = http.MaxBytesReader(nil, io.NopCloser(plain), q.maxBody), -1
	}
	data, err := readAll(body, size, seats)
	if err != nil {
		return nil, err
	}
	request, err := readInfer(data, r.Header.Get(headerLength))
	if err != nil {
		return nil, err
	}
	if len(request.Inputs) != 1 {
		return nil, refuse(http.StatusBadRequest, "%d inputs: a request has one, %q or %q", len(request.Inputs), imageInput, featuresInput)
	}
	_, err = request.choose(outputs(nil)) // before any work
	return request, err
}

// inflated decompresses a body.
func inflated(body io.Reader, encoding string) (io.Reader, error) {
	open := map[string]func() (io.Reader, error){
		"gzip":    func() (io.Reader, error) { return gzip.NewReader(body) },
		"deflate": func() (io.Reader, error) { return zlib.NewReader(body) },
	}[encoding]
	if open == nil {
		return nil, refuse(http.StatusUnsupportedMediaType, "Content-Encoding %q; gzip and deflate can be read", encoding)
	}
	inflated, err := open()
	if err != nil {
		return nil, readError(err)
	}
	return inflated, nil
}

// errorOutput is the last of the outputs.
const errorOutput = "error"

// outputs are the tensors of an answer. Of an image without a verdict the class is "",
// the label −1, the numbers are 0 and ood is true.
func outputs(outcomes []outcome) []inferOutput {
	n := len(outcomes)
	ids, classes, errors := make([]string, n), make([]string, n), make([]string, n)
	labels, ood := make([]int64, n), make([]bool, n)
	confidences, scores, pValues := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, o := range outcomes {
		ids[i] = o.id
		if o.err != nil {
			labels[i], ood[i] = -1, true
			continue
		}
		classes[i], labels[i], ood[i] = o.Class, int64(o.Label), o.OOD
		confidences[i], pValues[i] = o.Confidence, o.PValue
		scores[i] = min(max(o.Score, -math.MaxFloat64), math.MaxFloat64) // JSON has no infinities
	}
	output := func(name, datatype string, data any) inferOutput {
		return inferOutput{tensor: tensor{name, datatype, []int64{int64(n)}}, Data: data}
	}
	return []inferOutput{
		output("class", inferBytes, classes), output("label", "INT64", labels), output("confidence", "FP64", confidences), output("score", "FP64", scores),
		output("ood", "BOOL", ood), output("p_value", "FP64", pValues), output("id", inferBytes, ids), output(errorOutput, inferBytes, errors),
	}
}
