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

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// This file answers the requests of the Open Inference Protocol, version 2.

// The inputs of a model: one or the other.
const (
	imageInput    = "image"    // BYTES [n] or [n, 1]: encoded images
	featuresInput = "features" // FP32 [n, D] or [D]
)

func live(context.Context, *http.Request) (any, error) { return map[string]bool{"live": true}, nil }

// ready is false while the service ends, so that no more requests are sent to it.
func (s *Server) ready(context.Context, *http.Request) (any, error) {
	if s.draining.Load() {
		return withStatus{http.StatusServiceUnavailable, map[string]bool{"ready": false}}, nil
	}
	return map[string]bool{"ready": true}, nil
}

func (s *Server) serverMetadata(context.Context, *http.Request) (any, error) {
	return map[string]any{"name": "mlrbfn", "version": s.opts.Version, "extensions": []string{"binary_tensor_data", "model_repository"}}, nil
}

// detectors is what requests about models need.
type detectors interface {
	Names() []string
	Use(name string) (main, shadow *pool.Loaded)
	Reload(ctx context.Context, name string) error
}

// modelRequests are the requests about models.
type modelRequests struct{ detectors detectors }

// model returns the detector that the path of a request names. It must be released.
func model(d detectors, r *http.Request) (main, shadow *pool.Loaded, err error) {
	if main, shadow, err = used(d, r.PathValue("name")); err != nil {
		return nil, nil, err
	}
	if version := r.PathValue("version"); version != "" && version != main.Version() {
		err = refuse(http.StatusNotFound, "detector %q has version %s now, not %q", main.Name, main.Version(), version)
		main.Release()
		shadow.Release()
		return nil, nil, err
	}
	return main, shadow, nil
}

// about answers with what is known of a model.
func (m *modelRequests) about(r *http.Request, what func(*pool.Loaded) any) (any, error) {
	main, shadow, err := model(m.detectors, r)
	if err != nil {
		return nil, err
	}
	defer main.Release()
	defer shadow.Release()
	return what(main), nil
}

// tensor describes an input or output.
type tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

func inputsOf(d *pool.Loaded) []tensor {
	features := tensor{featuresInput, FP32, []int64{-1, int64(d.Dim())}}
	if !d.Images() {
		return []tensor{features}
	}
	return []tensor{{imageInput, inferBytes, []int64{-1}}, features}
}

func outputsOf() []tensor {
	var all []tensor
	for _, o := range outputs(nil) {
		all = append(all, tensor{o.Name, o.Datatype(), []int64{-1}})
	}
	return all
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
		main, shadow := m.detectors.Use(name)
		all = append(all, model{name, main.Version(), "READY"})
		main.Release()
		shadow.Release()
	}
	return all, nil
}

// load answers POST /v2/repository/models/NAME/load: the detector's file is read again.
func (m *modelRequests) load(ctx context.Context, r *http.Request) (any, error) {
	main, shadow, err := model(m.detectors, r)
	if err != nil {
		return nil, err
	}
	name := main.Name
	main.Release()
	shadow.Release()
	// Nobody who leaves stops it, or a file might be tried over and over.
	if err := m.detectors.Reload(context.WithoutCancel(ctx), name); err != nil {
		return nil, refuse(http.StatusBadRequest, "the file of detector %q cannot be used, and the old one stays; the log says why", name)
	}
	return m.index(ctx, r)
}

// infer answers POST /v2/models/NAME/infer.
func (s *Server) infer(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	main, shadow, err := model(s.detectors, r)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	defer main.Release()
	defer shadow.Release()
	seats := seats{places: s.places}
	defer seats.leave()
	response, err := s.inferred(ctx, w, r, main, shadow, &seats)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	body, header, err := response.Encode()
	if err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if header < len(body) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set(headerLength, strconv.Itoa(header))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // whoever has left gets no answer
}

// judgeInput judges the images, or the rows of features, of a request.
func (s *Server) judgeInput(ctx context.Context, main, shadow *pool.Loaded, source string, in inferTensor, seats *seats) ([]outcome, error) {
	switch {
	case in.Name == imageInput && in.Datatype == inferBytes:
		n := len(in.Elements)
		switch {
		case n == 0:
			return nil, refuse(http.StatusBadRequest, "the request has no image in it")
		case n > s.opts.MaxImages:
			return nil, refuse(http.StatusRequestEntityTooLarge, "%d images; a request may have %d", n, s.opts.MaxImages)
		}
		if err := seats.take(n - 1); err != nil {
			return nil, err
		}
		pictures := make([]picture, n)
		for i, data := range in.Elements {
			pictures[i].data = data
		}
		return s.all(ctx, main, shadow, source, pictures), nil
	case in.Name == featuresInput && in.Datatype == FP32:
		if k := len(in.Shape); k < 1 || k > 2 || in.Shape[k-1] != int64(main.Dim()) || len(in.Values) == 0 {
			return nil, refuse(http.StatusBadRequest, "features of shape %v; the detector reads [-1, %d]", in.Shape, main.Dim())
		}
		if at := slices.IndexFunc(in.Values, func(v float32) bool { return !(math.Abs(float64(v)) <= features.MostValue) }); at >= 0 {
			return nil, refuse(http.StatusBadRequest, "value %d of the features is %v: it must be finite and at most ±%g", at, in.Values[at], features.MostValue)
		}
		return s.rows(ctx, main, source, in.Values)
	}
	return nil, refuse(http.StatusBadRequest, "input %q of type %s; a detector reads %q of type %s, or %q of type %s", in.Name, in.Datatype, imageInput, inferBytes, featuresInput, FP32)
}

func (s *Server) inferred(ctx context.Context, w http.ResponseWriter, r *http.Request, main, shadow *pool.Loaded, seats *seats) (*inferResponse, error) {
	source, err := sourceOf(r)
	if err != nil {
		return nil, err
	}
	if err := seats.take(1); err != nil {
		return nil, err
	}
	body, err := s.body(w, r)
	if err != nil {
		return nil, err
	}
	size := r.ContentLength
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		if body, err = inflated(body, encoding); err != nil {
			return nil, err
		}
		body, size = http.MaxBytesReader(w, io.NopCloser(body), s.opts.MaxBody), -1
	}
	data, err := readAll(body, size, seats)
	if err != nil {
		return nil, err
	}
	s.wasRead(w)
	request, err := readInfer(data, r.Header.Get(headerLength))
	if err != nil {
		return nil, err
	}
	if len(request.Inputs) != 1 {
		return nil, refuse(http.StatusBadRequest, "%d inputs: a request has one, %q or %q", len(request.Inputs), imageInput, featuresInput)
	}
	if _, err := request.Choose(outputs(nil)); err != nil { // before any work
		return nil, err
	}
	outcomes, err := s.judgeInput(ctx, main, shadow, source, request.Inputs[0], seats)
	if err != nil {
		return nil, err
	}
	// One image that cannot be read spoils no other if the answer says which it is.
	says := len(request.Outputs) == 0 || slices.ContainsFunc(request.Outputs, func(w inferWanted) bool { return w.Name == errorOutput })
	failed := 0
	for i := range outcomes {
		if err := outcomes[i].err; err != nil {
			status, text := s.explain(ctx, err)
			if failed++; !says || failed == len(outcomes) || status != http.StatusUnprocessableEntity {
				return nil, refuse(status, "image %d of %d: %s", i, len(outcomes), text)
			}
		}
	}
	all := outputs(outcomes)
	for i := range outcomes {
		if err := outcomes[i].err; err != nil {
			_, text := s.explain(ctx, err)
			all[len(all)-1].Data.([]string)[i] = text
		}
	}
	chosen, err := request.Choose(all)
	return &inferResponse{Model: main.Name, Version: main.Version(), ID: request.ID, Outputs: chosen}, err
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
	output := func(name string, data any) inferOutput {
		return inferOutput{Name: name, Shape: []int64{int64(n)}, Data: data}
	}
	return []inferOutput{
		output("class", classes), output("label", labels), output("confidence", confidences), output("score", scores),
		output("ood", ood), output("p_value", pValues), output("id", ids), output(errorOutput, errors),
	}
}
