package serve

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mlrbfn/mlrbfn/internal/access"
)

// metrics are the service's counters and gauges for Prometheus.
type metrics struct {
	registry        *prometheus.Registry
	requests        *prometheus.CounterVec
	latency         *prometheus.HistogramVec
	stages          *prometheus.HistogramVec
	refused, shared prometheus.Counter
	verdicts        *prometheus.CounterVec
	failed          *prometheus.CounterVec
	pValues         *prometheus.HistogramVec
	shadows         *prometheus.CounterVec
	loads           *prometheus.CounterVec
	notStored       prometheus.Counter
	notKept         prometheus.Counter
	connections     prometheus.Counter
	unwatched       prometheus.Counter
	deliveries      *prometheus.CounterVec
}

// times are the bounds of the buckets of durations, in seconds.
var times = []float64{.001, .002, .005, .01, .02, .03, .05, .075, .1, .2, .5, 1, 2, 5, 10, 30}

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registered := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return registered.NewCounter(prometheus.CounterOpts{Name: "mlrbfn_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return registered.NewCounterVec(prometheus.CounterOpts{Name: "mlrbfn_" + name, Help: help}, labels)
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return registered.NewHistogramVec(prometheus.HistogramOpts{Name: "mlrbfn_" + name, Help: help, Buckets: buckets}, labels)
	}
	return &metrics{
		registry:    registry,
		requests:    counters("requests_total", "Requests by what they asked for and the status of their answers.", "route", "status"),
		latency:     histograms("request_seconds", "Time from the first byte of a request to the last of its answer.", times, "route"),
		stages:      histograms("stage_seconds", "Time of one part of the work: reading the request, waiting, features, verdict, storing, explaining.", times, "stage"),
		refused:     counter("refused_total", "Requests that were refused with status 429."),
		shared:      counter("shared_total", "Images that got the verdict of an equal one that was being judged."),
		verdicts:    counters("verdicts_total", "Verdicts by detector, class and whether the image is out of distribution.", "detector", "class", "ood"),
		failed:      counters("failed_images_total", "Images without a verdict.", "detector"),
		pValues:     histograms("p_value", "P-values of the verdicts. Of in-distribution images they are about uniform.", prometheus.LinearBuckets(0.05, 0.05, 20), "detector"),
		shadows:     counters("shadow_total", "Images that a shadow judged too: agree, another class, another ood, or an error.", "detector", "result"),
		loads:       counters("detector_loads_total", "Attempts to replace a detector by what its file had become.", "detector", "role", "result"),
		notStored:   counter("not_stored_total", "Verdicts that were answered and not stored."),
		deliveries:  counters("webhook_deliveries_total", "Attempts to send an event to the webhook: taken or failed.", "result"),
		connections: counter("refused_connections_total", "Connections that were ended, as their client had too many, or not taken, as there were no file descriptors."),
		unwatched:   counter("unwatched_images_total", "Images of sources that are not watched for drift by themselves but with others."),
		notKept:     counter("not_kept_total", "Images that were to be kept and were not."),
	}
}

// watch adds the gauges of a server.
func (m *metrics) watch(s *Server) {
	gauge := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mlrbfn_" + name, Help: help}, value))
	}
	gauge("running_images", "Images that are being judged.", func() float64 { n, _ := s.places.counts(); return float64(n) })
	gauge("waiting_images", "Images that are let in and wait.", func() float64 { _, n := s.places.counts(); return float64(n) })
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	gauge("ready", "1, or 0 while the service ends.", func() float64 { return one(!s.draining.Load()) })
	if queue := s.memory.queue; queue != nil {
		gauge("store_waiting_verdicts", "Verdicts that wait to be stored.", func() float64 { return float64(queue.Stats().Waiting) })
		gauge("store_up", "1 while verdicts are stored.", func() float64 { return one(queue.Stats().Down == nil) })
	}
	if s.webhook != nil {
		gauge("webhook_behind_lines", "Lines of the audit trail that the webhook has not been told of, or needs not be.", func() float64 { return float64(s.webhook.Behind()) })
	}
	m.registry.MustRegister(versions{s})
}

// versions says which detectors are open.
type versions struct{ *Server }

var versionInfo = prometheus.NewDesc("mlrbfn_detector_info", "1 for each detector that is open.", []string{"detector", "version"}, nil)

var (
	driftWealth  = prometheus.NewDesc("mlrbfn_drift_log_wealth", "Logarithm of the capital of the test for drift: evidence against images like the calibration images.", []string{"detector", "version", "source"}, nil)
	driftAlarm   = prometheus.NewDesc("mlrbfn_drift_alarm", "How many alarms are raised: of drift, of all images together and of classes, and of more flagged images than promised.", []string{"detector", "version", "source"}, nil)
	flaggedAlarm = prometheus.NewDesc("mlrbfn_flagged_alarm", "1 while more images are flagged than promised.", []string{"detector", "version", "source"}, nil)
)

func (v versions) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{versionInfo, driftWealth, driftAlarm, flaggedAlarm} {
		to <- d
	}
}

func (v versions) Collect(to chan<- prometheus.Metric) {
	for _, name := range v.detectors.Names() {
		d := v.detectors.Use(name)
		to <- prometheus.MustNewConstMetric(versionInfo, prometheus.GaugeValue, 1, d.Name, d.Version())
		d.Release()
	}
	for _, d := range v.drift.list() {
		if d.All == nil {
			continue
		}
		alarms := len(d.Alarms)
		if f := d.Flagged; f != nil {
			to <- prometheus.MustNewConstMetric(flaggedAlarm, prometheus.GaugeValue, map[bool]float64{true: 1}[f.Alarm], d.Detector, d.Version, d.Source)
		}
		to <- prometheus.MustNewConstMetric(driftWealth, prometheus.GaugeValue, d.All.LogWealth, d.Detector, d.Version, d.Source)
		to <- prometheus.MustNewConstMetric(driftAlarm, prometheus.GaugeValue, float64(alarms), d.Detector, d.Version, d.Source)
	}
}

// request counts a request. The route is the pattern that it matched, so that no client
// can make labels.
func (m *metrics) request(pattern string, status int, took time.Duration) {
	_, route, _ := strings.Cut(pattern, " ")
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

func (m *metrics) stage(name string, since time.Time) {
	m.stages.WithLabelValues(name).Observe(time.Since(since).Seconds())
}

func (m *metrics) judged(detector string, o outcome) {
	if o.err != nil {
		m.failed.WithLabelValues(detector).Inc()
		return
	}
	m.verdicts.WithLabelValues(detector, o.Class, strconv.FormatBool(o.OOD)).Inc()
	m.pValues.WithLabelValues(detector).Observe(o.PValue)
}

func (m *metrics) delivered(err error) {
	result := "taken"
	if err != nil {
		result = "failed"
	}
	m.deliveries.WithLabelValues(result).Inc()
}

func (m *metrics) shadow(detector, result string) { m.shadows.WithLabelValues(detector, result).Inc() }

func (m *metrics) changed(detector string, shadow bool, err error) {
	role, result := "detector", "replaced"
	if shadow {
		role = "shadow"
	}
	if err != nil {
		result = "refused"
	}
	m.loads.WithLabelValues(detector, role, result).Inc()
}

// MetricsHandler answers GET /metrics in Prometheus's format. Where requests need a
// token, so does it.
func (s *Server) MetricsHandler() http.Handler {
	metrics := promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if bearer, ok := s.bearer(r); !ok || !bearer.May(access.Read) {
			s.needToken(w, r)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	return mux
}
