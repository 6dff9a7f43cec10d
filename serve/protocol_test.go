package serve

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	json := `{"id":"7","inputs":[{"name":"image","shape":[2,1],"datatype":"BYTES","data":[["AQI="],["Aw=="]]}],"outputs":[{"name":"class","parameters":{"binary_data":true}},{"name":"ood"}]}`
	r, err := readInfer([]byte(json), "")
	inputs := []inferTensor{{tensor: tensor{"image", inferBytes, []int64{2, 1}}, Elements: [][]byte{{1, 2}, {3}}}}
	if err != nil || r.ID != "7" || !reflect.DeepEqual(r.Inputs, inputs) {
		t.Errorf("%+v, %v", r, err)
	}
	chosen, err := r.choose([]inferOutput{{tensor: tensor{Name: "ood"}}, {tensor: tensor{Name: "class"}}, {tensor: tensor{Name: "id"}}})
	if err != nil || len(chosen) != 2 || chosen[0].Name != "class" || !chosen[0].binary || chosen[1].Name != "ood" || chosen[1].binary {
		t.Errorf("%+v, %v", chosen, err)
	}

	head := `{"parameters":{"binary_data_output":true},"inputs":[{"name":"a","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":11}},{"name":"b","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}`
	tail := "\x02\x00\x00\x00hi\x01\x00\x00\x00!" + "\x00\x00\x80\x3f\x00\x00\x00\xc0"
	r, err = readInfer([]byte(head+tail), lengthOf(head))
	eleven, eight := int64(11), int64(8)
	inputs = []inferTensor{
		{tensor: tensor{"a", inferBytes, []int64{2}}, Parameters: parameters{Size: &eleven}, Elements: [][]byte{[]byte("hi"), []byte("!")}},
		{tensor: tensor{"b", FP32, []int64{1, 2}}, Parameters: parameters{Size: &eight}, Values: []float32{1, -2}},
	}
	if err != nil || !r.Parameters.BinaryOutput || len(r.Outputs) != 0 || !reflect.DeepEqual(r.Inputs, inputs) {
		t.Errorf("%+v, %v", r, err)
	}
}

func lengthOf(s string) string {
	digits := ""
	for n := len(s); n > 0; n /= 10 {
		digits = string(rune('0'+n%10)) + digits
	}
	return digits
}

func TestReadRefuses(t *testing.T) {
	one := func(input string) string { return `{"inputs":[` + input + `]}` }
	for _, tt := range []struct{ body, length, says string }{
		{``, "", "unexpected end"},
		{`[]`, "", "cannot unmarshal"},
		{`{}`, "3", "of a body of 2 bytes"},
		{`{}`, "-1", "of a body"},
		{`{} `, "2", "1 bytes follow"},
		{one(`{"name":"x","datatype":"BYTES","shape":[1]}`), "", "neither data"},
		{one(`{"name":"x","datatype":"INT8","shape":[1],"data":[1]}`), "", "INT8"},
		{one(`{"name":"x","datatype":"BYTES","shape":[-1],"data":[]}`), "", "the shape"},
		{one(`{"name":"x","datatype":"FP32","shape":[4000000000,4000000000,4000000000],"data":[]}`), "", "the shape"},
		{one(`{"name":"x","datatype":"BYTES","shape":[2],"data":["AA=="]}`), "", "1 elements"},
		{one(`{"name":"x","datatype":"BYTES","shape":[1],"data":["?"]}`), "", "base64"},
		{one(`{"name":"x","datatype":"BYTES","shape":[1],"data":[3]}`), "", "cannot unmarshal"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"data":3}`), "", "no list"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"data":[1e99]}`), "", "cannot unmarshal"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"data":` + strings.Repeat("[", 100) + "1" + strings.Repeat("]", 100) + `}`), "", "too many lists"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}`), "", "0 bytes are left"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"binary_data_size":0}}`), "", "both data"},
		{one(`{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"y"}}`), "", "shared memory"},
		{`{"outputs":[{"name":"x","parameters":{"classification":3}}]}`, "", "classification"},
	} {
		if _, err := readInfer([]byte(tt.body), tt.length); !errors.Is(err, errInfer) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.body, err, tt.says)
		}
	}
	for _, tail := range []string{"\x01\x00", "\x05\x00\x00\x00abc"} {
		head := one(`{"name":"x","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":` + lengthOf(tail) + `}}`)
		if _, err := readInfer([]byte(head+tail), lengthOf(head)); !errors.Is(err, errInfer) {
			t.Errorf("%q: %v", tail, err)
		}
	}
}

func TestEncode(t *testing.T) {
	all := []inferOutput{
		{tensor: tensor{"class", inferBytes, []int64{2}}, Data: []string{"a", "<b>"}},
		{tensor: tensor{"score", "FP64", []int64{2}}, Data: []float64{1, -0.5}},
		{tensor: tensor{"ood", "BOOL", []int64{2}}, Data: []bool{false, true}},
		{tensor: tensor{"label", "INT64", []int64{2}}, Data: []int64{0, 3}},
	}
	request, err := readInfer([]byte(`{"outputs":[{"name":"ood","parameters":{"binary_data":true}},{"name":"class"},
		{"name":"label","parameters":{"binary_data":true}},{"name":"class","parameters":{"binary_data":true}}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := request.choose(all)
	if err != nil {
		t.Fatal(err)
	}
	body, n, err := (&inferResponse{"m", "1", "7", chosen}).encode()
	if err != nil {
		t.Fatal(err)
	}
	const json = `{"model_name":"m","model_version":"1","id":"7","outputs":[{"name":"ood","datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}},{"name":"class","datatype":"BYTES","shape":[2],"data":["a","\u003cb\u003e"]},{"name":"label","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}},{"name":"class","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":12}}]}`
	const tail = "\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00" + "\x01\x00\x00\x00a\x03\x00\x00\x00<b>"
	if string(body[:n]) != json || string(body[n:]) != tail {
		t.Errorf("%s\n%q", body[:n], body[n:])
	}
	if chosen, err = (&inferRequest{}).choose(all); err != nil || len(chosen) != 4 {
		t.Error(chosen, err)
	}
	body, n, err = (&inferResponse{Outputs: chosen[1:2]}).encode()
	if want := `{"model_name":"","outputs":[{"name":"score","datatype":"FP64","shape":[2],"data":[1,-0.5]}]}`; err != nil || n != len(body) || string(body) != want {
		t.Errorf("%s, %v", body, err)
	}
	if request, err = readInfer([]byte(`{"outputs":[{"name":"other"}]}`), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := request.choose(all); !errors.Is(err, errInfer) {
		t.Error(err)
	}
}

// FuzzRead: no body makes the reader panic, and tensors have what their shapes say.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"inputs":[{"name":"a","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}}]}`+"\x01\x00\x00\x00a"), "92")
	f.Add([]byte(`{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","data":[[1,2]]}]}`), "")
	f.Fuzz(func(t *testing.T, body []byte, length string) {
		r, err := readInfer(body, length)
		if err != nil {
			return
		}
		for _, in := range r.Inputs {
			if n, err := elements(in.Shape); err != nil || n != int64(len(in.Elements)+len(in.Values)) {
				t.Errorf("%+v", in)
			}
		}
	})
}
