package serve

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// inferResponse is the answer to a request.
type inferResponse struct {
	Model, Version, ID string
	Outputs            []inferOutput
}

// inferOutput is a tensor of an answer. Its data is a []string (BYTES), []float64 (FP64),
// []int64 (INT64) or []bool (BOOL).
type inferOutput struct {
	Name   string
	Shape  []int64
	Data   any
	Binary bool
}

// Choose returns the outputs that a request wants, of all.
func (r *inferRequest) Choose(all []inferOutput) ([]inferOutput, error) {
	if len(r.Outputs) == 0 {
		chosen := slices.Clone(all)
		for i := range chosen {
			chosen[i].Binary = r.Binary
		}
		return chosen, nil
	}
	var chosen []inferOutput
	for _, w := range r.Outputs {
		at := slices.IndexFunc(all, func(o inferOutput) bool { return o.Name == w.Name })
		if at < 0 {
			return nil, fmt.Errorf("%w: there is no output %q", errInfer, w.Name)
		}
		o := all[at]
		o.Binary = w.Binary
		chosen = append(chosen, o)
	}
	return chosen, nil
}

// Datatype names the type of an output's data.
func (o inferOutput) Datatype() string {
	switch o.Data.(type) {
	case []string:
		return inferBytes
	case []float64:
		return "FP64"
	case []int64:
		return "INT64"
	case []bool:
		return "BOOL"
	}
	panic(fmt.Sprintf("protocol: output %s of %T", o.Name, o.Data))
}

// Encode returns the body of the response, and how many bytes of it are JSON: all if no
// output is binary.
func (r *inferResponse) Encode() (body []byte, header int, err error) {
	type size struct {
		Size int `json:"binary_data_size"`
	}
	type output struct {
		Name       string  `json:"name"`
		Datatype   string  `json:"datatype"`
		Shape      []int64 `json:"shape"`
		Parameters *size   `json:"parameters,omitempty"`
		Data       any     `json:"data,omitempty"`
	}
	out := struct {
		Model   string   `json:"model_name"`
		Version string   `json:"model_version,omitempty"`
		ID      string   `json:"id,omitempty"`
		Outputs []output `json:"outputs"`
	}{r.Model, r.Version, r.ID, []output{}}
	var tail []byte
	for _, o := range r.Outputs {
		one := output{Name: o.Name, Datatype: o.Datatype(), Shape: o.Shape, Data: o.Data}
		if o.Binary {
			before := len(tail)
			tail = appendBinary(tail, o.Data)
			one.Data, one.Parameters = nil, &size{len(tail) - before}
		}
		out.Outputs = append(out.Outputs, one)
	}
	if body, err = json.Marshal(out); err != nil {
		return nil, 0, err
	}
	return append(body, tail...), len(body), nil
}

func appendBinary(to []byte, data any) []byte {
	switch data := data.(type) {
	case []string:
		for _, v := range data {
			to = append(binary.LittleEndian.AppendUint32(to, uint32(len(v))), v...)
		}
	case []float64:
		for _, v := range data {
			to = binary.LittleEndian.AppendUint64(to, math.Float64bits(v))
		}
	case []int64:
		for _, v := range data {
			to = binary.LittleEndian.AppendUint64(to, uint64(v))
		}
	case []bool:
		for _, v := range data {
			b := byte(0)
			if v {
				b = 1
			}
			to = append(to, b)
		}
	}
	return to
}
