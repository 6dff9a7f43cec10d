// Package s3 lets package bucket use stores that speak the protocol of Amazon S3, as
// s3://, and Google Cloud Storage through its XML interface, which is the same, as gs://.
//
// Region, endpoint, profile, credentials and all else come from the usual variables and
// files of AWS (AWS_REGION, AWS_ENDPOINT_URL_S3, AWS_PROFILE, AWS_ACCESS_KEY_ID, …). With
// AWS_NO_SIGN_REQUEST=yes requests are anonymous. Where an endpoint is set, buckets are
// part of the path and not of the host's name, unless AWS_S3_ADDRESSING_STYLE=virtual.
//
// For gs:// requests are signed by an HMAC key, GS_ACCESS_KEY_ID and
// GS_SECRET_ACCESS_KEY, and are anonymous without one. GS_ENDPOINT_URL names another
// endpoint than Google's.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

func init() {
	bucket.Register("s3", openS3)
	bucket.Register("gs", openGS)
}

// set tells whether a variable says yes.
func set(name string) bool {
	return slices.Contains([]string{"1", "yes", "true", "on"}, strings.ToLower(os.Getenv(name)))
}

func openS3(ctx context.Context, at bucket.Location) (bucket.Driver, error) {
	opts := common()
	if set("AWS_NO_SIGN_REQUEST") {
		opts = append(opts, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, err
	}
	cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	endpoint := cfg.BaseEndpoint != nil || os.Getenv("AWS_ENDPOINT_URL_S3") != "" || os.Getenv("AWS_ENDPOINT_URL") != ""
	return &driver{at.Bucket, s3.NewFromConfig(cfg, func(o *s3.Options) {
		endpoint = endpoint || o.BaseEndpoint != nil
		o.UsePathStyle = endpoint && os.Getenv("AWS_S3_ADDRESSING_STYLE") != "virtual" || strings.Contains(at.Bucket, ".")
	})}, nil
}

func openGS(ctx context.Context, at bucket.Location) (bucket.Driver, error) {
	var provider aws.CredentialsProvider = aws.AnonymousCredentials{}
	if id := os.Getenv("GS_ACCESS_KEY_ID"); id != "" {
		provider = credentials.NewStaticCredentialsProvider(id, os.Getenv("GS_SECRET_ACCESS_KEY"), "")
	}
	cfg, err := config.LoadDefaultConfig(ctx, append(common(), config.WithCredentialsProvider(provider),
		config.WithRegion("auto"), config.WithSharedConfigFiles([]string{}), config.WithSharedCredentialsFiles([]string{}))...)
	if err != nil {
		return nil, err
	}
	return &driver{at.Bucket, s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.BaseEndpoint, o.UsePathStyle = aws.String(cmp.Or(os.Getenv("GS_ENDPOINT_URL"), "https://storage.googleapis.com")), true
		o.APIOptions = append(o.APIOptions, unsigned)
	})}, nil
}

// common are the options of both: package bucket retries, and checksums are sent only
// where a store wants them, as not every store knows the newer ones.
func common() []func(*config.LoadOptions) error {
	return []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(web.Tune)),
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
}

// unsigned leaves the header Accept-Encoding out of the signature, which Google's front
// servers change.
func unsigned(stack *middleware.Stack) error {
	const header = "Accept-Encoding"
	type key struct{}
	before := middleware.FinalizeMiddlewareFunc("WithoutAcceptEncoding", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
		if req, ok := in.Request.(*smithyhttp.Request); ok {
			ctx = middleware.WithStackValue(ctx, key{}, req.Header.Get(header))
			req.Header.Del(header)
		}
		return next.HandleFinalize(ctx, in)
	})
	after := middleware.FinalizeMiddlewareFunc("WithAcceptEncoding", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
		if req, ok := in.Request.(*smithyhttp.Request); ok {
			if v, _ := middleware.GetStackValue(ctx, key{}).(string); v != "" {
				req.Header.Set(header, v)
			}
		}
		return next.HandleFinalize(ctx, in)
	})
	if err := stack.Finalize.Insert(before, "Signing", middleware.Before); err != nil {
		return err
	}
	return stack.Finalize.Insert(after, "Signing", middleware.After)
}

type driver struct {
	bucket string
	client *s3.Client
}

// explained says what an error of the SDK means.
func explained(err error) error {
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "get credentials") || strings.Contains(err.Error(), "no EC2 IMDS role found") {
		return fmt.Errorf("%w; AWS_PROFILE or AWS_ACCESS_KEY_ID names credentials, and AWS_NO_SIGN_REQUEST=yes asks without any", err)
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		text := strconv.Itoa(response.HTTPStatusCode())
		var api smithy.APIError
		if errors.As(err, &api) {
			text = strings.TrimSpace(text + " " + api.ErrorCode() + " " + api.ErrorMessage())
			if slices.Contains([]string{"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "ServiceUnavailable", "Throttling"}, api.ErrorCode()) {
				return bucket.Temporary(fmt.Errorf("the store says %s", text))
			}
		}
		if err := bucket.StatusError(response.HTTPStatusCode(), text); err != nil {
			return err
		}
		return bucket.Temporary(err) // an answer that was cut short
	}
	var sent *smithyhttp.RequestSendError
	var network net.Error
	var decoding *smithy.DeserializationError
	if errors.As(err, &sent) || errors.As(err, &network) || errors.As(err, &decoding) {
		return bucket.Temporary(err)
	}
	return err
}

func (d *driver) List(ctx context.Context, prefix, page string) ([]bucket.Object, string, error) {
	in := &s3.ListObjectsV2Input{Bucket: &d.bucket, Prefix: &prefix}
	if page != "" {
		in.ContinuationToken = &page
	}
	out, err := d.client.ListObjectsV2(ctx, in)
	if err != nil {
		return nil, "", explained(err)
	}
	objects := make([]bucket.Object, 0, len(out.Contents))
	for _, o := range out.Contents {
		objects = append(objects, bucket.Object{Name: aws.ToString(o.Key), Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified), ETag: aws.ToString(o.ETag)})
	}
	if next := aws.ToString(out.NextContinuationToken); aws.ToBool(out.IsTruncated) && next != "" {
		return objects, next, nil
	}
	return objects, "", nil
}

func (d *driver) Get(ctx context.Context, key string, from, n int64, etag string) (io.ReadCloser, bucket.Object, error) {
	in := &s3.GetObjectInput{Bucket: &d.bucket, Key: &key}
	switch {
	case n > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", from, from+n-1))
	case n == 0:
		return nil, bucket.Object{}, errors.New("a range without bytes")
	case from > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", from))
	}
	if etag != "" {
		in.IfMatch = &etag
	}
	out, err := d.client.GetObject(ctx, in)
	if err != nil {
		var response *smithyhttp.ResponseError
		if errors.As(err, &response) && response.HTTPStatusCode() == 416 && from == 0 { // an empty object
			return io.NopCloser(bytes.NewReader(nil)), bucket.Object{Name: key, ETag: etag}, nil
		}
		return nil, bucket.Object{}, explained(err)
	}
	o := bucket.Object{Name: key, Size: aws.ToInt64(out.ContentLength), Modified: aws.ToTime(out.LastModified), ETag: aws.ToString(out.ETag)}
	if in.Range != nil {
		_, total, _ := strings.Cut(aws.ToString(out.ContentRange), "/")
		if o.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return nil, o, errors.Join(fmt.Errorf("the store answers a range with %q", aws.ToString(out.ContentRange)), out.Body.Close())
		}
	}
	return out.Body, o, nil
}
