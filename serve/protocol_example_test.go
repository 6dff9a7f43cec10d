package serve

import (
	"fmt"
	"log"
)

// A request of a client of KServe or Triton with two rows of features, and its answer.
func Example_openInferenceProtocol() {
	request, err := readInfer([]byte(`{"id": "7", "inputs": [
		{"name": "features", "shape": [2, 3], "datatype": "FP32", "data": [1, 0, 0, 0, 1, 0]}
	], "outputs": [{"name": "class"}]}`), "")
	if err != nil {
		log.Fatal(err)
	}
	rows := request.Inputs[0]
	fmt.Println(rows.Name, rows.Shape, rows.Values)

	outputs, err := request.choose([]inferOutput{
		{tensor: tensor{"class", inferBytes, []int64{2}}, Data: []string{"cat", "dog"}},
		{tensor: tensor{"p_value", "FP64", []int64{2}}, Data: []float64{0.5, 0.01}},
	})
	if err != nil {
		log.Fatal(err)
	}
	answer := inferResponse{Model: "main", Version: "1", ID: request.ID, Outputs: outputs}
	body, _, err := answer.encode()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", body)
	// Output:
	// features [2 3] [1 0 0 0 1 0]
	// {"model_name":"main","model_version":"1","id":"7","outputs":[{"name":"class","datatype":"BYTES","shape":[2],"data":["cat","dog"]}]}
}
