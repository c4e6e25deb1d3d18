// The registry client of franz-go: it registers schemas of all kinds, finds them by all ways, checks, and deletes.
//
// The address of the registry is the argument. What went wrong is on the standard error, with the exit status 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	money = `syntax = "proto3"; package shop; message Money { int64 units = 1; }`
	price = `syntax = "proto3"; package shop; import "money.proto"; message Price { Money money = 1; }`
	small = `{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}`
	wide  = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}`
	other = `{"type":"record","name":"Order","fields":[{"name":"name","type":"string"}]}`
	typed = `{"type":"object","properties":{"id":{"type":"integer"}}}`
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(is bool, format string, args ...any) {
	if !is {
		panic(fmt.Errorf(format, args...))
	}
}

func must[T any](found T, err error) T {
	expect(err == nil, "%v", err)
	return found
}

func run(ctx context.Context, url string) (failure error) {
	defer func() {
		if found := recover(); found != nil {
			failure = fmt.Errorf("%v", found)
		}
	}()
	cl := must(sr.NewClient(sr.URLs(url)))
	kinds := must(cl.SupportedTypes(ctx))
	expect(len(kinds) == 3, "types: %v", kinds)

	first := must(cl.CreateSchema(ctx, "go-orders", sr.Schema{Schema: small}))
	again := must(cl.CreateSchema(ctx, "go-orders", sr.Schema{Schema: small}))
	expect(first.ID == again.ID && first.Version == 1, "%v is not %v", first, again)
	text := must(cl.SchemaByID(ctx, first.ID))
	expect(text.Schema == small, "schema: %s", text.Schema)
	expect(slices.Contains(must(cl.SubjectsByID(ctx, first.ID)), "go-orders"), "subjects of the id")
	check := must(cl.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "go-orders", -1, sr.Schema{Schema: other}))
	expect(!check.Is && len(check.Messages) > 0, "check: %v", check)
	_, err := cl.CreateSchema(ctx, "go-orders", sr.Schema{Schema: other})
	var refused *sr.ResponseError
	expect(errors.As(err, &refused) && refused.StatusCode == 409, "refused: %v", err)
	second := must(cl.CreateSchema(ctx, "go-orders", sr.Schema{Schema: wide}))
	expect(slices.Equal(must(cl.SubjectVersions(ctx, "go-orders")), []int{1, 2}), "versions")
	found := must(cl.LookupSchema(ctx, "go-orders", sr.Schema{Schema: wide}))
	expect(found.ID == second.ID && found.Version == 2, "lookup: %v", found)
	expect(must(cl.SchemaByVersion(ctx, "go-orders", -1)).ID == second.ID, "latest")

	must(cl.CreateSchema(ctx, "money.proto", sr.Schema{Schema: money, Type: sr.TypeProtobuf}))
	references := []sr.SchemaReference{{Name: "money.proto", Subject: "money.proto", Version: 1}}
	whole := must(cl.CreateSchema(ctx, "go-price", sr.Schema{Schema: price, Type: sr.TypeProtobuf, References: references}))
	expect(whole.Type == sr.TypeProtobuf && len(whole.References) == 1, "protobuf: %v", whole)
	users := must(cl.SchemaReferences(ctx, "money.proto", 1))
	expect(len(users) == 1 && users[0].Subject == "go-price", "references: %v", users)
	json := must(cl.CreateSchema(ctx, "go-json", sr.Schema{Schema: typed, Type: sr.TypeJSON}))
	expect(json.Type == sr.TypeJSON, "json: %v", json)

	set := cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, "go-orders")
	expect(set[0].Err == nil, "set: %v", set[0].Err)
	level := cl.Compatibility(ctx, "go-orders")
	expect(level[0].Err == nil && level[0].Level == sr.CompatFull, "level: %v", level)
	reset := cl.ResetCompatibility(ctx, "go-orders")
	expect(reset[0].Err == nil, "reset: %v", reset[0].Err)
	mode := cl.SetMode(ctx, sr.ModeReadOnly, "go-orders")
	expect(mode[0].Err == nil, "mode: %v", mode[0].Err)
	expect(cl.Mode(ctx, "go-orders")[0].Mode == sr.ModeReadOnly, "read-only")
	expect(cl.ResetMode(ctx, "go-orders")[0].Err == nil, "reset of the mode")

	expect(cl.DeleteSchema(ctx, "go-orders", 2, sr.SoftDelete) == nil, "delete of a version")
	deleted := must(cl.DeleteSubject(ctx, "go-orders", sr.SoftDelete))
	expect(slices.Equal(deleted, []int{1}), "deleted: %v", deleted)
	expect(!slices.Contains(must(cl.Subjects(ctx)), "go-orders"), "subjects")
	expect(slices.Contains(must(cl.Subjects(sr.WithParams(ctx, sr.ShowDeleted))), "go-orders"), "deleted subjects")
	must(cl.DeleteSubject(ctx, "go-orders", sr.HardDelete))
	_, err = cl.SchemaByVersion(ctx, "go-orders", 1)
	expect(errors.As(err, &refused) && refused.ErrorCode == 40401, "missing: %v", err)

	serde := sr.NewSerde()
	serde.Register(whole.ID, struct{}{}, sr.Index(0), sr.EncodeFn(func(any) ([]byte, error) { return []byte("x"), nil }))
	fmt.Printf("%x\n", must(serde.Encode(struct{}{})))
	return nil
}
