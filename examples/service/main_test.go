package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// TestService asks the service for known images, unknown ones, and what is no image.
func TestService(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := errors.Join(testenv.DrawnFolder("images/red", 0, 120), testenv.DrawnFolder("images/green", 1, 120)); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := pipeline.Extract(ctx, pipeline.ExtractOptions{Model: "pixels", Images: "images", Out: "features"}); err != nil {
		t.Fatal(err)
	}
	detector, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{"features"}})
	if err == nil {
		err = detector.Save("detector.safetensors")
	}
	if err != nil {
		t.Fatal(err)
	}
	judge, err := pipeline.OpenJudge(ctx, "detector.safetensors", extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	service := httptest.NewServer(handler(judge))
	defer service.Close()
	ask := func(body []byte) (status int, a answer) {
		response, err := http.Post(service.URL+"/judge", "image/png", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		_ = json.NewDecoder(response.Body).Decode(&a) // an error is no JSON
		return response.StatusCode, a
	}
	if status, a := ask(testenv.DrawnPNG(1, 1000)); status != http.StatusOK || a.Class != "green" || a.OOD || a.PValue < 0.05 {
		t.Errorf("of a green image it says %d %+v", status, a)
	}
	if status, a := ask(testenv.DrawnPNG(2, 1000)); status != http.StatusOK || !a.OOD {
		t.Errorf("of a blue image it says %d %+v", status, a)
	}
	if status, _ := ask([]byte("no image")); status != http.StatusUnprocessableEntity {
		t.Errorf("of text it says %d", status)
	}
}
