{{- define "ottla.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* ID@HOST:PORT of each node: the pods of a StatefulSet have stable names in its headless service. */}}
{{- define "ottla.voters" -}}
{{- $name := include "ottla.name" . -}}
{{- range $i := until (int .Values.replicas) }}{{ if $i }},{{ end }}{{ add1 $i }}@{{ $name }}-{{ $i }}.{{ $name }}-nodes:9093{{ end }}
{{- end }}

{{/* Asks the node for its health, at an address that only its own pod reaches. */}}
{{- define "ottla.probe" -}}
[python, -c, "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/health/{{ . }}', timeout=8)"]
{{- end }}

{{/* How many nodes have each record, unless the settings say otherwise. */}}
{{- define "ottla.copies" -}}
{{- $copies := min 3 (int .Values.replicas) -}}
default.replication.factor: {{ $copies }}
min.insync.replicas: {{ min 2 $copies }}
offsets.topic.replication.factor: {{ $copies }}
transaction.state.log.replication.factor: {{ $copies }}
transaction.state.log.min.isr: {{ min 2 $copies }}
share.coordinator.state.topic.replication.factor: {{ $copies }}
share.coordinator.state.topic.min.isr: {{ min 2 $copies }}
{{- end }}
