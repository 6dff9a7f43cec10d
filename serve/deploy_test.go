package serve

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// TestDashboard: each metric that the dashboard shows is one that the service has.
func TestDashboard(t *testing.T) {
	w, _ := remembering(t)
	ask(t, "POST", w.url+"/v1/detect", nil, bytes.NewReader(servetest.Image(0, 1)))
	w.drift.update(t.Context(), true)
	w.metrics.changed("main", false, nil)
	w.metrics.shadow("main", "agree")
	w.metrics.delivered(nil)
	metrics := httptest.NewServer(w.MetricsHandler())
	defer metrics.Close()
	_, _, offered := ask(t, "GET", metrics.URL+"/metrics", nil, nil)
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy", "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`mlrbfn_[a-z_]+`).FindAllString(string(rules), -1) {
		if !strings.Contains(offered, "\n"+name) && !strings.HasPrefix(name, "mlrbfn_webhook_behind") {
			t.Errorf("alerts.yaml: there is no metric %s", name)
		}
	}
	shown := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`(mlrbfn|process)_[a-z_]+`).FindAllString(target.Expr, -1) {
				if shown++; !strings.Contains(offered, "\n"+name) {
					t.Errorf("%s: there is no metric %s", p.Title, name)
				}
			}
		}
	}
	if shown < 20 {
		t.Errorf("%d metrics are shown", shown)
	}
}

// TestAlerts: the rules of alerts are raised when they should be.
func TestAlerts(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("there is no promtool here")
	}
	test := exec.Command("promtool", "test", "rules", "alerts.test.yaml")
	test.Dir = filepath.Join(testenv.Root(t), "deploy")
	if text, err := test.CombinedOutput(); err != nil {
		t.Errorf("%s", text)
	}
}
