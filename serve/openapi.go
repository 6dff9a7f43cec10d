package serve

import (
	"bytes"
	"context"
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

func (s *Server) openAPI(context.Context, *http.Request) (any, error) {
	text := openapi
	if s.tokens == nil {
		text = bytes.Replace(text, needsToken, nil, 1)
	}
	return file{kind: "application/json", data: text}, nil
}
