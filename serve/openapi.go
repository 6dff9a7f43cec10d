package serve

import (
	"bytes"
	_ "embed"
	"net/http"
)

// openapi describes what is offered; a test compares it with the routes.
//
//go:embed openapi.json
var openapi []byte

// needsToken is what the description says where a token is needed.
var needsToken = []byte(`"security": [
  {
   "token": []
  }
 ],`)

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) {
	text := openapi
	if s.tokens == nil {
		text = bytes.Replace(text, needsToken, nil, 1)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // whoever has left gets no answer
}
