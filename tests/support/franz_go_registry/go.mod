module ottla.tests/franz_go_registry

go 1.26.0

require github.com/twmb/franz-go/pkg/sr v1.5.0
